#include "policy/prefill/cost_model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace winnow {

PruningCost ComputePruningCost(std::span<const LayerCost> layers, const PruningPlan& plan) {
  WINNOW_CHECK(0 <= plan.kept && plan.kept <= plan.tokens && 0 <= plan.accepted &&
                   plan.accepted <= std::ssize(layers),
               "{} of {} tokens at layer {} of {}", plan.kept, plan.tokens, plan.accepted,
               layers.size());
  PruningCost cost;
  for (const LayerCost& layer : layers) cost.full += layer.At(plan.tokens);
  for (const LayerCost& layer : layers.first(plan.accepted)) cost.shallow += layer.At(plan.tokens);
  for (const LayerCost& layer : layers.subspan(plan.accepted)) {
    cost.deep += layer.At(plan.kept);
    cost.deep_removed += layer.At(plan.tokens) - layer.At(plan.kept);
  }
  cost.pruned = cost.shallow + cost.deep + plan.auxiliary;
  // Not full − pruned, whose shallow layers would cancel with rounding.
  cost.saving = cost.deep_removed - plan.auxiliary;
  return cost;
}

double BreakEvenTokens(std::span<const LayerCost> layers, const PruningPlan& plan) {
  LayerCost deep;
  for (const LayerCost& layer : layers.subspan(plan.accepted)) {
    deep.linear += layer.linear;
    deep.quadratic += layer.quadratic;
  }
  // a·t + b·t² = c, the positive root in the form that keeps its digits for a small b.
  const double c = deep.At(plan.tokens) - plan.auxiliary;
  const double discriminant = deep.linear * deep.linear + 4 * deep.quadratic * c;
  const double slope = deep.linear + std::sqrt(std::max(discriminant, 0.0));
  if (slope == 0 || discriminant < 0) return -std::numeric_limits<double>::infinity();
  return 2 * c / slope;
}

IdealSaving ComputeIdealSaving(const LayerCost& layer, double tokens, double kept_share,
                               int64_t accepted, int64_t layers) {
  WINNOW_CHECK(layers >= 1 && 0 <= accepted && accepted <= layers);
  const double deep = 1 - static_cast<double>(accepted) / static_cast<double>(layers);
  const double linear = layer.linear;
  const double quadratic = layer.quadratic * tokens;
  const double squared = 1 - kept_share * kept_share;
  IdealSaving saving;
  saving.low = deep * (1 - kept_share);
  saving.high = deep * squared;
  saving.share = deep * (linear * (1 - kept_share) + quadratic * squared) / (linear + quadratic);
  return saving;
}

void OnlineCollision::Add(std::span<const double> scores) {
  double max = max_;
  for (double score : scores) max = std::max(max, score);
  if (max == -std::numeric_limits<double>::infinity()) return;  // masked: no mass yet
  const double rescale = std::exp(max_ - max);
  sum_ *= rescale;
  squares_ *= rescale * rescale;
  for (double score : scores) {
    const double weight = std::exp(score - max);
    sum_ += weight;
    squares_ += weight * weight;
  }
  max_ = max;
}

double OnlineCollision::Collision() const { return squares_ / (sum_ * sum_); }

}  // namespace winnow
