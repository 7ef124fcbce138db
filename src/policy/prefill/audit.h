// What observers lose to a removal on average, by observers chosen before it was made
// (EntroPrefill (17), (18)).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

enum class AuditMode {
  kExact,      // all observers are looked at: no slack, no δ
  kHoeffding,  // (17): Hoeffding's inequality
  kKl,  // Chernoff's bound: the largest p with m·KL(η̂‖p) <= ln(J·H/δ); never the looser one
};

struct AuditRule {
  AuditMode mode = AuditMode::kExact;
  double delta = 0.05;     // δ in (0, 1)
  int64_t n_draws = 1600;  // m_a >= 1; of no account for kExact
  int64_t n_layers = 1;    // J: every prespecified monitored layer
  int64_t n_heads = 1;     // H
};

// b of (17): what is added to a mean of 0, in mass; for kKl it is smaller for most other means.
double AuditSlack(const AuditRule& rule);

// min(1, η̂ + b) of (18), or Chernoff's bound. NaN stays NaN.
double AuditUpper(const AuditRule& rule, double mean);

// Whether the slack alone exceeds what a head may lose, `eps_audit` [H]: then no removal passes.
bool AuditIsVacuous(const AuditRule& rule, std::span<const double> eps_audit);

// Whether the audit cannot fail once the scan has passed: it is exact, all its observers are the
// proposal's, and it allows no head less than each of the head's rows was allowed. eps [H].
bool AuditIsUninformative(const AuditRule& rule, bool all_propose, std::span<const double> eps,
                          std::span<const double> eps_audit);

// Indices of `n` observers of `population`, with replacement, the same for the same seed.
std::vector<int64_t> DrawObservers(int64_t population, int64_t n, uint64_t seed);

// How often each observer counts, Σ = 1: `draws` as a histogram, or all alike if there are none.
std::vector<double> ObserverWeights(int64_t population, std::span<const int64_t> draws);

struct AuditResult {
  std::vector<double> mean;   // η̂ [H]
  std::vector<double> upper;  // [H]
  double worst_upper = 0;     // NaN if any is
  bool passes = false;        // upper <= ε_audit for every head; never with a NaN
};

// chunk_mass [H * U, k]: head h's observer u in row h * U + u; observer_weights [U]; removed: the
// chunks E; eps [H].
AuditResult Audit(const AuditRule& rule, TensorView<const double, 2> chunk_mass,
                  std::span<const double> observer_weights, std::span<const int32_t> removed,
                  std::span<const double> eps);

}  // namespace winnow
