// The Residual-Mass paper's figures for one query head: how diffuse the middle is, how much of it a
// retrieval recovers, and how far an estimate is off. "Not defined" is NaN.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace winnow {

struct MiddleEntropy {
  double nats = 0;        // H_mid of softmax(scores); NaN for an empty middle
  double normalised = 0;  // divided by log|mid|; NaN for fewer than two tokens
};
// scores [n], the true scaled logits of the middle. NaN or +inf among them gives NaN.
MiddleEntropy ComputeMiddleEntropy(std::span<const double> scores);

// C_mid(K) for each of `ks`: the share of the middle's true mass in its K largest scores. K beyond
// the middle counts as all; NaN for an empty middle or scores that are NaN or +inf.
std::vector<double> MassRecovery(std::span<const double> scores, std::span<const int64_t> ks);

// ρ_res = Ẑ/(Z_E + Ẑ) from the log masses; 0 where neither has mass.
double ResidualShare(double exact_log_mass, double estimated_log_mass);

// e = ‖ô − o‖₁/‖o‖₁. An exact o = 0 has error 0 only against itself, +inf otherwise.
double RelativeL1Error(std::span<const double> estimate, std::span<const double> exact);

// log Ẑ_R − log Z_R; negative: underestimated. NaN where both are empty.
double LogPartitionError(double estimated_log_mass, double true_log_mass);

}  // namespace winnow
