#include "eval/prune_tolerances.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/rng.h"

namespace winnow {
namespace {

// Room above what calibration prompts lost, for prompts that are not among them.
constexpr double kFactor = 1.15;
constexpr double kRoom = 0.02;
// Of the means of heads that know, whose limits are what refuses blind removals.
constexpr double kTightFactor = 1.05;
constexpr double kTightRoom = 0.005;
constexpr double kMostTolerance = 0.999;
// An audit must be able to fail after the scan: its tolerance, on means, lies below.
constexpr double kAuditShare = 0.98;
// Prompts whose means may lie above the limits, of all: the audit refuses about as many requests.
constexpr double kOutliers = 0.05;

// Limits of the means from those prompts that are `in`.
std::vector<double> AuditLimits(std::span<const HeadLosses> kept, const std::vector<uint8_t>& in,
                                std::span<const double> weights, std::span<const double> eps) {
  std::vector<double> limits(weights.size());
  for (size_t head = 0; head < weights.size(); ++head) {
    const bool knows = weights[head] > 0;
    double most = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (in[i] != 0 || !knows) most = std::max(most, kept[i].mean[head]);
    }
    const double limit = knows ? most * kTightFactor + kTightRoom : most * kFactor + kRoom;
    limits[head] = std::min(kAuditShare * eps[head], limit);
  }
  return limits;
}

int64_t CountRefused(std::span<const HeadLosses> blind, std::span<const double> eps,
                     std::span<const double> eps_audit) {
  return std::ranges::count_if(
      blind, [&](const HeadLosses& losses) { return !losses.Within(eps, eps_audit); });
}

}  // namespace

HeadLosses HeadLosses::Of(const PruneProblem& problem, std::span<const double> chunk_mass,
                          std::span<const int32_t> removed) {
  const auto n_heads = static_cast<size_t>(problem.query_heads);
  const int64_t n_rows = problem.n_observers();
  HeadLosses losses{std::vector<double>(n_heads), std::vector<double>(n_heads)};
  const double* row = chunk_mass.data();
  for (size_t head = 0; head < n_heads; ++head) {
    for (int64_t u = 0; u < n_rows; ++u, row += problem.n_chunks()) {
      double lost = 0;
      for (const int32_t chunk : removed) lost += row[chunk];
      losses.mean[head] += lost / static_cast<double>(n_rows);
      if (u >= problem.first_proposal) {
        losses.worst_row[head] = std::max(losses.worst_row[head], lost);
      }
    }
  }
  return losses;
}

bool HeadLosses::Within(std::span<const double> eps, std::span<const double> eps_audit) const {
  for (size_t head = 0; head < mean.size(); ++head) {
    if (!(worst_row[head] <= eps[head] && mean[head] <= eps_audit[head])) return false;
  }
  return true;
}

std::vector<int32_t> RandomRemoval(const PruneProblem& problem, int64_t target_saving,
                                   uint64_t seed) {
  std::vector<int32_t> order(problem.chunk_tokens.size());
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  int64_t saving = 0;
  size_t n = 0;
  while (n + 1 < order.size() && saving < target_saving) {
    saving += problem.chunk_tokens[order[n++]];
  }
  order.resize(n);
  return order;
}

std::vector<std::vector<int32_t>> RandomRemovals(const PruneProblem& problem, int64_t target_saving,
                                                 uint64_t index) {
  constexpr uint64_t kDraws = 10;
  std::vector<std::vector<int32_t>> removals;
  removals.reserve(kDraws);
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    removals.push_back(RandomRemoval(problem, target_saving, index * kDraws + draw));
  }
  return removals;
}

PruneTolerances ChooseTolerances(std::span<const HeadLosses> kept,
                                 std::span<const HeadLosses> blind,
                                 std::span<const double> weights) {
  WINNOW_CHECK(!kept.empty());
  PruneTolerances tolerances;
  for (size_t head = 0; head < weights.size(); ++head) {
    double most = 0;
    for (const HeadLosses& losses : kept) most = std::max(most, losses.worst_row[head]);
    tolerances.eps.push_back(std::min(kMostTolerance, most * kFactor + kRoom));
  }
  std::vector<uint8_t> in(kept.size(), 1);
  tolerances.eps_audit = AuditLimits(kept, in, weights, tolerances.eps);
  int64_t refused = CountRefused(blind, tolerances.eps, tolerances.eps_audit);
  const auto n_outliers =
      static_cast<int64_t>(std::floor(kOutliers * static_cast<double>(kept.size())));
  for (int64_t n = 0; n < n_outliers; ++n) {
    int64_t best = refused;
    size_t outlier = kept.size();
    for (size_t i = 0; i < kept.size(); ++i) {
      if (in[i] == 0) continue;
      in[i] = 0;
      const int64_t now =
          CountRefused(blind, tolerances.eps, AuditLimits(kept, in, weights, tolerances.eps));
      in[i] = 1;
      if (now <= best) continue;
      best = now;
      outlier = i;
    }
    if (outlier == kept.size()) break;
    in[outlier] = 0;
    refused = best;
    tolerances.eps_audit = AuditLimits(kept, in, weights, tolerances.eps);
  }
  return tolerances;
}

}  // namespace winnow
