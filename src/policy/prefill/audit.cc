#include "policy/prefill/audit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/rng.h"

namespace winnow {
namespace {

// ln(J·H/δ)
double LogTests(const AuditRule& rule) {
  return std::log(static_cast<double>(rule.n_layers) * static_cast<double>(rule.n_heads) /
                  rule.delta);
}

// KL(q‖p) of two coins, in nats.
double CoinDivergence(double q, double p) {
  const double heads = q > 0 ? q * std::log(q / p) : 0;
  const double tails = q < 1 ? (1 - q) * std::log((1 - q) / (1 - p)) : 0;
  return heads + tails;
}

// The upper end of the last interval of halving, so no less than the true one.
double ChernoffUpper(double mean, double budget) {
  double lo = mean;
  double hi = 1;
  while (true) {
    const double mid = lo + (hi - lo) / 2;
    if (mid <= lo || mid >= hi) return hi;
    (CoinDivergence(mean, mid) <= budget ? lo : hi) = mid;
  }
}

}  // namespace

double AuditSlack(const AuditRule& rule) {
  const auto n = static_cast<double>(rule.n_draws);
  switch (rule.mode) {
    case AuditMode::kExact:
      return 0;
    case AuditMode::kHoeffding:
      return std::sqrt(LogTests(rule) / (2 * n));
    case AuditMode::kKl:
      return AuditUpper(rule, 0);
  }
  return 0;
}

double AuditUpper(const AuditRule& rule, double mean) {
  if (std::isnan(mean)) return mean;
  mean = std::clamp(mean, 0.0, 1.0);  // sums of shares exceed 1 by rounding
  if (rule.mode == AuditMode::kKl) {
    return ChernoffUpper(mean, LogTests(rule) / static_cast<double>(rule.n_draws));
  }
  return std::min(1.0, mean + AuditSlack(rule));
}

bool AuditIsVacuous(const AuditRule& rule, std::span<const double> eps_audit) {
  const double slack = AuditSlack(rule);
  return std::any_of(eps_audit.begin(), eps_audit.end(), [&](double eps) { return slack > eps; });
}

bool AuditIsUninformative(const AuditRule& rule, bool all_propose, std::span<const double> eps,
                          std::span<const double> eps_audit) {
  return rule.mode == AuditMode::kExact && all_propose &&
         std::equal(eps.begin(), eps.end(), eps_audit.begin(), eps_audit.end(),
                    [](double scan, double audit) { return audit >= scan; });
}

std::vector<int64_t> DrawObservers(int64_t population, int64_t n, uint64_t seed) {
  WINNOW_CHECK(population > 0, "nobody to draw");
  Rng rng(seed);
  std::vector<int64_t> draws(n);
  for (int64_t& draw : draws) {
    draw = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(population)));
  }
  return draws;
}

std::vector<double> ObserverWeights(int64_t population, std::span<const int64_t> draws) {
  if (draws.empty()) {
    return std::vector<double>(population, 1.0 / static_cast<double>(population));
  }
  std::vector<double> weights(population, 0);
  for (const int64_t draw : draws) weights[draw] += 1;
  for (double& weight : weights) weight /= static_cast<double>(draws.size());
  return weights;
}

AuditResult Audit(const AuditRule& rule, TensorView<const double, 2> chunk_mass,
                  std::span<const double> observer_weights, std::span<const int32_t> removed,
                  std::span<const double> eps) {
  const auto n_observers = static_cast<int64_t>(observer_weights.size());
  const auto n_heads = static_cast<int64_t>(eps.size());
  WINNOW_CHECK(chunk_mass.shape[0] == n_heads * n_observers, "{} rows of {} heads and {} observers",
               chunk_mass.shape[0], n_heads, n_observers);
  AuditResult result{.mean = std::vector<double>(n_heads, 0),
                     .upper = std::vector<double>(n_heads, 0),
                     .worst_upper = 0,
                     .passes = true};
  for (int64_t h = 0; h < n_heads; ++h) {
    for (int64_t u = 0; u < n_observers; ++u) {
      if (observer_weights[u] == 0) continue;
      const double* row = chunk_mass.row(h * n_observers + u);
      double mass = 0;
      for (const int32_t chunk : removed) mass += row[chunk];
      result.mean[h] += observer_weights[u] * mass;
    }
    const double upper = AuditUpper(rule, result.mean[h]);
    result.upper[h] = upper;
    result.passes = result.passes && upper <= eps[h];
    // The first NaN stays: no number is larger.
    if (std::isnan(upper) || upper > result.worst_upper) result.worst_upper = upper;
  }
  return result;
}

}  // namespace winnow
