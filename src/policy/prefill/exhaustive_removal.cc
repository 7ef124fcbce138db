#include "policy/prefill/exhaustive_removal.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace winnow {
namespace {

bool Feasible(const ScreeningProblem& problem, uint32_t set) {
  const auto n_chunks = static_cast<int>(problem.chunk_tokens.size());
  return std::all_of(problem.rows.begin(), problem.rows.end(), [&](const ConstraintRow& row) {
    double mass = 0;
    for (int i = 0; i < n_chunks; ++i) {
      if ((set >> i & 1) != 0) mass += row.mass[i];
    }
    return mass <= row.eps;
  });
}

}  // namespace

int64_t BestSaving(const ScreeningProblem& problem) {
  const auto n_chunks = static_cast<int>(problem.chunk_tokens.size());
  if (n_chunks > 24) Throw(ErrorKind::kInput, "all removals of {} chunks are too many", n_chunks);
  int64_t best = 0;
  for (uint32_t set = 0; set < uint32_t{1} << n_chunks; ++set) {
    if (std::popcount(set) > n_chunks - problem.min_chunks) continue;
    int64_t saving = 0;
    for (int i = 0; i < n_chunks; ++i) {
      if ((set >> i & 1) != 0) saving += problem.chunk_tokens[i];
    }
    if (saving > best && Feasible(problem, set)) best = saving;
  }
  return best;
}

}  // namespace winnow
