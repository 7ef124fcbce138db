#include "policy/prefill/prune_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/median.h"

namespace winnow {
namespace {

constexpr double kMostDeviation = 0.1;

// The median slope of the lines through two points of different x; nothing if there are none.
std::optional<double> MedianSlope(std::span<const double> x, std::span<const double> y) {
  std::vector<double> slopes;
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (x[i] != x[j]) slopes.push_back((y[i] - y[j]) / (x[i] - x[j]));
    }
  }
  return slopes.empty() ? std::nullopt : std::optional(LowerMedian(std::move(slopes)));
}

// Layers as (31) takes them.
std::vector<LayerCost> LayersOf(const PrefillCosts& costs, const PrefillWork& work) {
  std::vector<LayerCost> layers;
  for (const int64_t window : work.windows) {
    LayerCost layer = costs.layer;
    if (window > 0 && window < work.tokens) {
      layer.linear += 2 * layer.quadratic * static_cast<double>(window);
      layer.quadratic = 0;
    }
    layers.push_back(layer);
  }
  layers.back() = {.linear = costs.last_linear};
  return layers;
}

double Auxiliary(const PrefillCosts& costs, const PrefillWork& work, const PrefillCourse& course) {
  const auto cells = static_cast<double>(work.observers) * static_cast<double>(work.tokens);
  double seconds = static_cast<double>(course.layers_scored) * costs.score * cells;
  if (course.applied_layer == 0) return seconds;
  const auto global =
      std::count(work.windows.begin(), work.windows.begin() + course.applied_layer, int64_t{0});
  const double moved =
      static_cast<double>(std::max<int64_t>(0, course.kept - work.reused)) * work.hidden_bytes +
      static_cast<double>(course.kept * global) * work.kv_bytes;
  return seconds + costs.remove * cells + costs.copy * (work.parked_bytes + moved);
}

}  // namespace

std::optional<LayerCost> FitLayerCost(std::span<const TimedRows> pieces) {
  std::vector<double> sum;      // begin + end
  std::vector<double> a_token;  // seconds
  for (const TimedRows& piece : pieces) {
    WINNOW_CHECK(0 <= piece.begin && piece.begin < piece.end, "tokens [{}, {})", piece.begin,
                 piece.end);
    sum.push_back(static_cast<double>(piece.begin + piece.end));
    a_token.push_back(piece.seconds / static_cast<double>(piece.end - piece.begin));
  }
  const std::optional<double> slope = MedianSlope(sum, a_token);
  if (!slope.has_value()) return std::nullopt;
  LayerCost cost{.quadratic = std::max(0.0, *slope)};
  std::vector<double> rest(sum.size());
  for (size_t i = 0; i < sum.size(); ++i) rest[i] = a_token[i] - cost.quadratic * sum[i];
  cost.linear = LowerMedian(rest);
  if (cost.linear < 0) {
    for (size_t i = 0; i < sum.size(); ++i) rest[i] = a_token[i] / sum[i];
    cost = {.quadratic = LowerMedian(rest)};
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    rest[i] = std::abs(a_token[i] / (cost.linear + cost.quadratic * sum[i]) - 1);
  }
  const bool agrees = LowerMedian(rest) <= kMostDeviation;  // false for what is not a number, too
  return agrees ? std::optional(cost) : std::nullopt;
}

PrefillSeconds Foresee(const PrefillCosts& costs, const PrefillWork& work,
                       const PrefillCourse& course) {
  const int n_layers = static_cast<int>(work.windows.size());
  WINNOW_CHECK(0 <= work.reused && work.reused <= work.resumed && work.resumed <= work.tokens &&
                   0 <= work.resumed_layers && work.resumed_layers <= n_layers,
               "{} and {} of {} tokens", work.reused, work.resumed, work.tokens);
  const std::vector<LayerCost> layers = LayersOf(costs, work);
  const bool drops = course.applied_layer > 0;
  const int accepted = drops ? course.applied_layer : n_layers;
  const PruningCost whole =
      ComputePruningCost(layers, {.tokens = static_cast<double>(work.tokens),
                                  .kept = static_cast<double>(drops ? course.kept : work.tokens),
                                  .accepted = accepted});
  PrefillSeconds seconds{
      .below = whole.shallow, .above = whole.deep, .auxiliary = Auxiliary(costs, work, course)};
  for (int layer = 0; layer < n_layers; ++layer) {
    const int64_t there = layer < work.resumed_layers ? work.resumed : work.reused;
    (layer < accepted ? seconds.below : seconds.above) -=
        layers[layer].At(static_cast<double>(there));
  }
  return seconds;
}

std::optional<PruneForecast> ForeseePruning(const PrefillCosts& costs, const PrefillWork& work) {
  const auto n_scored = static_cast<int64_t>(work.monitored.size());
  if (n_scored <= work.min_streak) return std::nullopt;
  // Hidden states of resumed tokens exist only above the layers that were resumed.
  const auto at = [&](int64_t index) {
    return PrefillCourse{.layers_scored = index + 1,
                         .applied_layer = std::max(work.monitored[index], work.resumed_layers),
                         .kept = work.target_kept};
  };
  PruneForecast forecast{.kept = work.target_kept,
                         .first_layer = work.monitored[work.min_streak],
                         .last_layer = work.monitored.back()};
  forecast.full = Foresee(costs, work, {}).total();
  forecast.first = Foresee(costs, work, at(work.min_streak));
  forecast.last = Foresee(costs, work, at(n_scored - 1));
  return forecast;
}

std::string WhyItDoesNotPay(const PruneForecast& forecast) {
  return fmt::format(
      "it would not pay: with {} tokens left once layer {} is accepted, the first that can be, the "
      "prompt would take {:.1f} ms here, {:.1f} of them to choose and to copy, and as it is {:.1f}",
      forecast.kept, forecast.first_layer, forecast.first.total() * 1e3,
      forecast.first.auxiliary * 1e3, forecast.full * 1e3);
}

std::optional<IdealSaving> ForeseeIdealSaving(const PrefillCosts& costs, const PrefillWork& work,
                                              const PrefillCourse& course) {
  const bool equal = std::all_of(work.windows.begin(), work.windows.end(),
                                 [](int64_t window) { return window == 0; });
  if (!equal || work.reused > 0 || work.resumed > 0 || course.applied_layer == 0) {
    return std::nullopt;
  }
  const auto tokens = static_cast<double>(work.tokens);
  return ComputeIdealSaving(costs.layer, tokens, static_cast<double>(course.kept) / tokens,
                            course.applied_layer, std::ssize(work.windows));
}

}  // namespace winnow
