#include "policy/prefill/candidate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/account.h"
#include "core/check.h"

namespace winnow {
namespace {

std::vector<ConstraintRow> ProposalRows(const PruneProblem& problem,
                                        TensorView<const double, 2> chunk_mass,
                                        std::span<const double> eps) {
  std::vector<ConstraintRow> rows;
  rows.reserve(static_cast<size_t>(problem.query_heads * problem.n_proposal()));
  for (int h = 0; h < problem.query_heads; ++h) {
    for (int64_t u = problem.first_proposal; u < problem.n_observers(); ++u) {
      rows.push_back({chunk_mass.row(h * problem.n_observers() + u), eps[h]});
    }
  }
  return rows;
}

bool AllFinite(const std::vector<ConstraintRow>& rows, int64_t n_chunks) {
  return std::all_of(rows.begin(), rows.end(), [&](const ConstraintRow& row) {
    return std::isfinite(std::accumulate(row.mass, row.mass + n_chunks, 0.0));
  });
}

std::optional<PruneVerdict> WhyInvalid(const PruneProblem& problem, const PruneCandidate& c) {
  if (!c.scores.finite || !AllFinite(c.rows, problem.n_chunks())) return PruneVerdict::kNonFinite;
  if (c.scores.all_fallback) return PruneVerdict::kInvalidResidual;
  if (!c.scores.enough_mass) return PruneVerdict::kInvalidDocumentMass;
  return std::nullopt;
}

}  // namespace

template <typename T>
PruneCandidate ProposeRemoval(const PruneProblem& problem, TensorView<const T, 2> mean_attention,
                              TensorView<const double, 2> chunk_mass, const Proposer& proposer,
                              const CandidateRule& rule) {
  WINNOW_CHECK(chunk_mass.shape[0] == problem.query_heads * problem.n_observers() &&
                   chunk_mass.shape[1] == problem.n_chunks() &&
                   std::ssize(rule.eps) == problem.query_heads,
               "a table [{}, {}] and {} tolerances of {} heads, {} observers and {} chunks",
               chunk_mass.shape[0], chunk_mass.shape[1], rule.eps.size(), problem.query_heads,
               problem.n_observers(), problem.n_chunks());
  PruneCandidate candidate;
  Timed(candidate.seconds_score, [&] {
    ScoreParams params = rule.score;
    proposer.Configure(params);
    candidate.scores = ScoreChunks(problem, mean_attention, params, rule.head_weights);
    candidate.rows = ProposalRows(problem, chunk_mass, rule.eps);
    candidate.invalid = WhyInvalid(problem, candidate);
    if (!candidate.invalid) {
      candidate.priorities = proposer.Priorities(problem, candidate.scores, rule.seed);
    }
    for (const double priority : candidate.priorities) {
      if (!std::isfinite(priority)) candidate.invalid = PruneVerdict::kNonFinite;
    }
  });
  if (candidate.invalid) return candidate;
  Timed(candidate.seconds_scan, [&] {
    candidate.scan = FeasibleScan({.score = candidate.priorities,
                                   .chunk_tokens = problem.chunk_tokens,
                                   .rows = candidate.rows,
                                   .min_chunks = rule.min_chunks,
                                   .target_saving = rule.target_saving,
                                   .tie_quantum = rule.tie_quantum});
  });
  return candidate;
}

template PruneCandidate ProposeRemoval(const PruneProblem&, TensorView<const float, 2>,
                                       TensorView<const double, 2>, const Proposer&,
                                       const CandidateRule&);
template PruneCandidate ProposeRemoval(const PruneProblem&, TensorView<const double, 2>,
                                       TensorView<const double, 2>, const Proposer&,
                                       const CandidateRule&);

}  // namespace winnow
