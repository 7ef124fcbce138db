#include "eval/prune_calibration.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "eval/prune_tolerances.h"

namespace winnow {
namespace {

// Heads that are pooled at most, unless all are: more dilute what the best one knows.
constexpr size_t kMostHeads = 3;
// Layers that a late profile monitors at most, and how much worse than the best one they may be.
constexpr size_t kMostLayers = 4;
constexpr double kRecallSlack = 0.02;
// Of the calibration prompts, with stability between layers; else it is not asked for.
constexpr double kAcceptedShare = 0.95;

// The share of the candidates' tokens that has to be kept so that the evidence is among them.
double NeededShare(const ObservedPrompt& prompt, const PruneCandidate& candidate) {
  if (candidate.invalid) return 1;
  int64_t before = 0;
  int64_t all = 0;
  bool found = false;
  for (const int32_t chunk : candidate.scan.order) {
    found |= std::ranges::find(prompt.evidence, chunk) != prompt.evidence.end();
    if (!found) before += prompt.problem.chunk_tokens[chunk];
    all += prompt.problem.chunk_tokens[chunk];
  }
  return 1 - static_cast<double>(before) / static_cast<double>(all);
}

struct Quality {
  double recall = 0;
  double needed = 1;  // mean share
  bool operator>(const Quality& other) const {
    return recall != other.recall ? recall > other.recall : needed < other.needed;
  }
};

Quality Judge(const std::vector<ObservedPrompt>& prompts, size_t layer,
              const std::vector<double>& weights, const UnlimitedRemoval& removal) {
  Quality quality{.needed = 0};
  for (const ObservedPrompt& prompt : prompts) {
    const PruneCandidate candidate = removal.Propose(prompt, prompt.layers[layer], weights);
    quality.recall += prompt.Keeps(candidate) ? 1 : 0;
    quality.needed += NeededShare(prompt, candidate);
  }
  const auto n = static_cast<double>(prompts.size());
  return {quality.recall / n, quality.needed / n};
}

struct Monitored {
  size_t index = 0;  // into ObservedPrompt::layers
  std::vector<double> weights;
  Quality quality;
  double pooled_recall = 0;  // of all heads alike
};

// The heads of one layer that find most together: all of them alike, as in the paper, or the best
// one and then others that improve on it.
Monitored BestHeads(const std::vector<ObservedPrompt>& prompts, size_t layer,
                    const UnlimitedRemoval& removal) {
  const int n_heads = prompts.front().problem.query_heads;
  Monitored best{layer, std::vector<double>(n_heads, 1.0)};
  best.quality = Judge(prompts, layer, best.weights, removal);
  best.pooled_recall = best.quality.recall;
  std::vector<double> pool(n_heads, 0.0);
  Quality pool_quality{-1, 2};
  for (size_t n = 0; n < kMostHeads; ++n) {
    std::optional<std::vector<double>> better;
    for (int head = 0; head < n_heads; ++head) {
      if (pool[head] > 0) continue;
      std::vector<double> weights = pool;
      weights[head] = 1;
      const Quality quality = Judge(prompts, layer, weights, removal);
      if (!(quality > pool_quality)) continue;
      pool_quality = quality;
      better = std::move(weights);
    }
    if (!better.has_value()) break;
    pool = *std::move(better);
  }
  if (pool_quality > best.quality) best = {layer, pool, pool_quality, best.pooled_recall};
  return best;
}

// An early profile takes the one layer that finds most; a late one those that find nearly as much,
// the earliest first.
std::vector<Monitored> ChooseLayers(std::vector<Monitored> layers, PruneStyle style) {
  const auto best = std::max_element(
      layers.begin(), layers.end(),
      [](const Monitored& a, const Monitored& b) { return b.quality > a.quality; });
  if (style == PruneStyle::kEarly) return {*best};
  const double least = best->quality.recall - kRecallSlack;
  std::erase_if(layers, [least](const Monitored& layer) { return layer.quality.recall < least; });
  if (layers.size() > kMostLayers) layers.resize(kMostLayers);
  return layers;
}

// From what this layer's own removals cost where they keep the evidence.
PruneProfileLayer WithTolerances(const std::vector<ObservedPrompt>& prompts,
                                 const Monitored& monitored, const UnlimitedRemoval& removal) {
  std::vector<HeadLosses> kept;
  std::vector<HeadLosses> blind;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const ObservedPrompt& prompt = prompts[i];
    const ObservedPrompt::Layer& seen = prompt.layers[monitored.index];
    const PruneCandidate candidate = removal.Propose(prompt, seen, monitored.weights);
    if (candidate.invalid) continue;
    for (const std::vector<int32_t>& removed :
         RandomRemovals(prompt.problem, removal.TargetSaving(prompt), i)) {
      blind.push_back(HeadLosses::Of(prompt.problem, seen.chunk_mass, removed));
    }
    if (!prompt.Keeps(candidate)) continue;
    kept.push_back(HeadLosses::Of(prompt.problem, seen.chunk_mass, candidate.scan.removed));
  }
  const int number = prompts.front().layers[monitored.index].number;
  if (kept.empty()) {
    Throw(ErrorKind::kInput, "layer {} keeps the evidence of no prompt: nothing can be calibrated",
          number);
  }
  PruneTolerances tolerances = ChooseTolerances(kept, blind, monitored.weights);
  return {.layer = number,
          .head_weights = monitored.weights,
          .eps = std::move(tolerances.eps),
          .eps_audit = std::move(tolerances.eps_audit)};
}

}  // namespace

PruneCalibration CalibratePruning(const std::vector<ObservedPrompt>& prompts, int n_layers,
                                  const PruneCalibrationOptions& options) {
  WINNOW_CHECK(!prompts.empty());
  const UnlimitedRemoval removal("entroprefill", options.keep);
  const PruneProblem& problem = prompts.front().problem;
  PruneCalibration result;
  std::vector<Monitored> layers;
  for (size_t i = 0; i < prompts.front().layers.size(); ++i) {
    const int number = prompts.front().layers[i].number;
    if (number < options.first_layer || number > options.last_layer) continue;
    layers.push_back(BestHeads(prompts, i, removal));
    result.layers.push_back({.layer = number,
                             .pooled = layers.back().pooled_recall,
                             .head_weights = layers.back().weights,
                             .best = layers.back().quality.recall,
                             .best_needed = layers.back().quality.needed});
  }
  if (layers.empty()) {
    Throw(ErrorKind::kInput, "no layer from {} to {} can be monitored", options.first_layer,
          options.last_layer);
  }
  const std::vector<Monitored> monitored = ChooseLayers(std::move(layers), options.style);
  result.profile = {.name = options.style == PruneStyle::kEarly ? "early" : "late",
                    .n_layers = n_layers,
                    .query_heads = problem.query_heads,
                    .kv_heads = problem.kv_heads,
                    .keep = options.keep,
                    .min_streak = monitored.size() > 1 ? 1 : 0};
  for (const Monitored& layer : monitored) {
    result.profile.layers.push_back(WithTolerances(prompts, layer, removal));
  }
  result.calibration = TestPruning(prompts, result.profile);
  const auto n_prompts = static_cast<double>(prompts.size());
  if (result.profile.min_streak > 0 &&
      static_cast<double>(result.calibration.method().accepted) < kAcceptedShare * n_prompts) {
    // Layers that agree on what matters need not agree on what does not.
    result.profile.min_streak = 0;
    result.calibration = TestPruning(prompts, result.profile);
  }
  return result;
}

}  // namespace winnow
