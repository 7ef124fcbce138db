// What one layer proposes to remove: scores, then the scan under the proposal rows' constraints.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/prefill_account.h"
#include "policy/prefill/chunk_scores.h"
#include "policy/prefill/constraint_row.h"
#include "policy/prefill/feasible_scan.h"
#include "policy/prefill/proposer.h"
#include "policy/prefill/prune_problem.h"

namespace winnow {

// Fixed before the request's attention is seen. H query heads.
struct CandidateRule {
  ScoreParams score;
  std::span<const double> head_weights;  // [H], or empty: all alike
  std::span<const double> eps;           // [H]: what each of a head's rows may lose
  int64_t min_chunks = 0;                // m0
  int64_t target_saving = 0;             // tokens
  double tie_quantum = 1e-9;
  uint64_t seed = 0;  // for proposers that draw
};

struct PruneCandidate {
  // Set if the layer is invalid, and then there is no scan.
  std::optional<PruneVerdict> invalid;
  ChunkScores scores;
  std::vector<double> priorities;   // [k]
  std::vector<ConstraintRow> rows;  // of the proposal's observers, by head
  ScanResult scan;
  double seconds_score = 0;
  double seconds_scan = 0;
};

// Looks at the proposal's observers only, never at those that only the audit has. mean_attention
// [H, T], chunk_mass [H * U, k] as in LayerObservation; the rows point into the latter.
template <typename T>
PruneCandidate ProposeRemoval(const PruneProblem& problem, TensorView<const T, 2> mean_attention,
                              TensorView<const double, 2> chunk_mass, const Proposer& proposer,
                              const CandidateRule& rule);

extern template PruneCandidate ProposeRemoval(const PruneProblem&, TensorView<const float, 2>,
                                              TensorView<const double, 2>, const Proposer&,
                                              const CandidateRule&);
extern template PruneCandidate ProposeRemoval(const PruneProblem&, TensorView<const double, 2>,
                                              TensorView<const double, 2>, const Proposer&,
                                              const CandidateRule&);

}  // namespace winnow
