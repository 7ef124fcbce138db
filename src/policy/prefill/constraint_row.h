// One row constraint on a removal: what one observer of one head may lose (EntroPrefill (14)).
#pragma once

#include <cstdint>
#include <vector>

namespace winnow {

struct ConstraintRow {
  const double* mass = nullptr;  // [k]: m_ai, the row's attention mass on each chunk
  double eps = 0;                // ε_a
};

// Flags [k] of a list of chunks.
inline std::vector<uint8_t> RemovalFlags(const std::vector<int32_t>& removed, int64_t n_chunks) {
  std::vector<uint8_t> flags(n_chunks, 0);
  for (const int32_t chunk : removed) flags[chunk] = 1;
  return flags;
}

}  // namespace winnow
