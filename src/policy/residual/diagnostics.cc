#include "policy/residual/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// exp(score − max), descending; empty if the scores define no distribution.
std::vector<double> DescendingMasses(std::span<const double> scores) {
  double max = -kInfinity;
  for (double score : scores) {
    if (std::isnan(score)) return {};
    max = std::max(max, score);
  }
  if (!std::isfinite(max)) return {};
  std::vector<double> masses;
  masses.reserve(scores.size());
  for (double score : scores) masses.push_back(std::exp(score - max));
  std::sort(masses.begin(), masses.end(), std::greater<>());
  return masses;
}

}  // namespace

MiddleEntropy ComputeMiddleEntropy(std::span<const double> scores) {
  const std::vector<double> masses = DescendingMasses(scores);
  if (masses.empty()) return {kNaN, kNaN};
  double total = 0;
  double weighted = 0;  // Σ m·log m
  for (double mass : masses) {
    total += mass;
    if (mass > 0) weighted += mass * std::log(mass);
  }
  const double nats = std::log(total) - weighted / total;
  const auto n = static_cast<double>(masses.size());
  return {nats, masses.size() < 2 ? kNaN : nats / std::log(n)};
}

std::vector<double> MassRecovery(std::span<const double> scores, std::span<const int64_t> ks) {
  const std::vector<double> masses = DescendingMasses(scores);
  if (masses.empty()) return std::vector<double>(ks.size(), kNaN);
  std::vector<double> sums = {0.0};  // of the largest 0, 1, ...
  for (double mass : masses) sums.push_back(sums.back() + mass);
  std::vector<double> shares;
  shares.reserve(ks.size());
  for (int64_t k : ks) {
    shares.push_back(sums[std::clamp<int64_t>(k, 0, std::ssize(masses))] / sums.back());
  }
  return shares;
}

double ResidualShare(double exact_log_mass, double estimated_log_mass) {
  if (exact_log_mass == -kInfinity && estimated_log_mass == -kInfinity) return 0;
  return 1 / (1 + std::exp(exact_log_mass - estimated_log_mass));
}

double RelativeL1Error(std::span<const double> estimate, std::span<const double> exact) {
  WINNOW_CHECK(estimate.size() == exact.size(), "{} and {}", estimate.size(), exact.size());
  double error = 0;
  double norm = 0;
  for (size_t c = 0; c < exact.size(); ++c) {
    error += std::abs(estimate[c] - exact[c]);
    norm += std::abs(exact[c]);
  }
  return error == 0 && norm == 0 ? 0 : error / norm;
}

double LogPartitionError(double estimated_log_mass, double true_log_mass) {
  return estimated_log_mass - true_log_mass;
}

}  // namespace winnow
