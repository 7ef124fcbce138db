// How much weight can lie off the support: bounds for the entropic projection and for softmax.
//
// Notation: M atoms, I the support of the Euclidean projection α*, Δ its support gap (the smallest
// multiplier off I), D the diameter of the hull, H(α*) the entropy of α* in nats. The paper's
// (M − |I|)·exp(−Δ/ε), c = 1, holds for genuine softmax weights and is wrong for the projection.
#pragma once

#include <cstdint>
#include <span>

namespace winnow {

struct SupportGeometry {
  int64_t n_atoms = 0;    // M
  int64_t n_support = 0;  // |I|
  double gap = 0;         // Δ >= 0; +inf where nothing lies off the support
  double diameter = 0;    // D
  double entropy = 0;     // H(α*); 0 is always on the safe side
};

// (M − |I|)·exp(−Δ/(c·ε)), the form of the paper's Corollary 1; not cut off at 1.
double LeakageBound(int64_t n_outside, double gap, double eps, double c);

// The largest ε for which `LeakageBound` is at most `leakage` > 0 (Vashista 10.5); +inf where it is
// for every ε.
double EpsilonForLeakage(int64_t n_outside, double gap, double leakage, double c);

// Δ²/(8·D²·(log M − H(α*))): up to this ε the bound with c = 2 holds for the projection. +inf where
// every ε will do, as with one atom.
double SufficientEpsilon(const SupportGeometry& geometry);

// ε·(log M − H(α*))/Δ, which bounds the leakage of the projection for every ε. +inf for Δ = 0
// unless α* is uniform.
double UnconditionalLeakage(const SupportGeometry& geometry, double eps);

// √(2ε·(log M − H(α*))), which bounds ‖y_ε − y*‖ for every ε.
double UnconditionalReadoutError(const SupportGeometry& geometry, double eps);

// What may be said of the projection's leakage at `eps`: the smaller of the bounds that hold.
struct CertifiedLeakage {
  double bound = 0;
  bool exponential = false;  // c = 2 holds at this ε and gave the bound
  bool vacuous = false;      // the bound is 1 or more
};
CertifiedLeakage CertifyLeakage(const SupportGeometry& geometry, double eps);

// The largest ε whose certified leakage is at most `leakage` in (0, 1]; 0 if there is none (Δ = 0),
// +inf if every ε will do.
double CertifiedEpsilon(const SupportGeometry& geometry, double leakage);

// Leakage of softmax(s/ε) off a set S, and bounds of it.
struct SoftmaxLeakage {
  double leak = 0;        // the truth: the share of the tokens off S
  double tight = 0;       // Σ_{j∉S} exp((s_j − max_S s)/ε)
  double paper_form = 0;  // (M − |S|)·exp(−(max_S s − max_{∉S} s)/ε)
  double score_gap = 0;   // largest minus second largest score; +inf for one token
};
// scores [M], in_set [M] with at least one true entry; eps > 0. NaN scores give NaN.
SoftmaxLeakage BoundSoftmaxLeakage(std::span<const double> scores, std::span<const bool> in_set,
                                   double eps);

}  // namespace winnow
