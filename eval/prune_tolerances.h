// How much each head may lose to a removal: chosen from what removals that keep the evidence cost
// on calibration prompts, and from what blind ones cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/prefill/prune_problem.h"

namespace winnow {

// Attention mass that observers of one prompt lose to one removal, by query head.
struct HeadLosses {
  std::vector<double> worst_row;  // [H], of the proposal's rows
  std::vector<double> mean;       // [H], over all observers

  // chunk_mass [H · U, k] as in LayerObservation; `removed`: chunks.
  static HeadLosses Of(const PruneProblem& problem, std::span<const double> chunk_mass,
                       std::span<const int32_t> removed);
  // No row and no mean above its limit.
  bool Within(std::span<const double> eps, std::span<const double> eps_audit) const;
};

// Chunks in a random order, until they save as much as the target, and one stays at least.
std::vector<int32_t> RandomRemoval(const PruneProblem& problem, int64_t target_saving,
                                   uint64_t seed);
// Ten of them, other ones for another `index` of a prompt.
std::vector<std::vector<int32_t>> RandomRemovals(const PruneProblem& problem, int64_t target_saving,
                                                 uint64_t index);

struct PruneTolerances {
  std::vector<double> eps;        // [H]: of each row
  std::vector<double> eps_audit;  // [H]: of the mean, below that of the rows
};

// Of each head the most that `kept` lost, and room for other prompts. Heads that are pooled
// (weight > 0) are the ones that know: their means get little room, and up to one prompt in twenty
// is left out of their limits, one by one, each time the one without which most of `blind`
// (removals of the same size that nothing guided) are refused. At least one kept; all with H =
// weights.size() heads.
PruneTolerances ChooseTolerances(std::span<const HeadLosses> kept,
                                 std::span<const HeadLosses> blind,
                                 std::span<const double> weights);

}  // namespace winnow
