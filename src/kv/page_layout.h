// How keys and values lie inside one page: the only place that does page arithmetic.
//
// A page holds `slots` tokens (G) of one layer for all KV heads, head-major and contiguous:
// [K][k|v][G][D]. A row (one token of one head, D values) is `row_bytes` long.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace winnow {

using PageId = int32_t;
inline constexpr PageId kNoPage = -1;
inline constexpr int kDefaultPageSlots = 32;

struct PageLayout {
  int kv_heads = 0;  // K
  int slots = 0;     // G
  int head_dim = 0;  // D
  DType dtype = DType::kF16;
  size_t row_bytes = 0;
  size_t block_bytes = 0;  // the keys, or the values, of one head: G rows
  size_t page_bytes = 0;   // all heads, rounded up to a multiple of 64

  PageLayout() = default;
  // Throws Error(kUsage) if the dtype cannot hold rows of `head_dim` values (q8_0 needs D % 32 ==
  // 0).
  PageLayout(int kv_heads, int slots, int head_dim, DType dtype);

  size_t KeyOffset(int head) const { return 2 * static_cast<size_t>(head) * block_bytes; }
  size_t ValueOffset(int head) const { return KeyOffset(head) + block_bytes; }
  // Bytes of keys and values that `n` tokens take in all heads (no padding).
  int64_t TokenBytes(int64_t n) const { return n * 2 * kv_heads * static_cast<int64_t>(row_bytes); }
  bool operator==(const PageLayout&) const = default;
};

}  // namespace winnow
