// Which chunks go: one greedy pass that keeps every row constraint (EntroPrefill (14)).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/prefill/constraint_row.h"

namespace winnow {

struct ScanRequest {
  std::span<const double> score;          // [k], finite; the lowest go first
  std::span<const int64_t> chunk_tokens;  // [k], n_i
  std::span<const ConstraintRow> rows;
  int64_t min_chunks = 0;     // m0 in [0, k]: that many stay
  int64_t target_saving = 0;  // tokens
  // Scores are compared as rint(S / quantum), else an even spread is ordered by its rounding
  // noise. 0 compares them as they are.
  double tie_quantum = 1e-9;
};

struct ScanResult {
  std::vector<int32_t> order;    // [k]: ties go to the larger chunk, then to the lower index
  std::vector<int32_t> removed;  // in the order of removal
  int64_t saving = 0;            // tokens, D_l
  std::vector<double> row_mass;  // [rows]: what each loses
  bool target_met = false;
};

// Takes chunks in order while the target is not met, each only if every row keeps row_mass + m_ai
// <= ε_a in float64, without slack, and m0 chunks stay. A feasible heuristic: missing the target
// does not prove that it is out of reach.
ScanResult FeasibleScan(const ScanRequest& request);

}  // namespace winnow
