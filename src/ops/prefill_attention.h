// Dense causal attention of a chunk of new tokens over paged keys and values (flash attention on
// the CPU).
#pragma once

#include <cstdint>
#include <span>

#include "core/account.h"
#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"

namespace winnow {

// The kernel keeps token numbers as floats.
inline constexpr int64_t kMaxAttentionTokens = int64_t{1} << 24;

struct PrefillAttentionParams {
  TensorView<const float, 3> q;  // [T, H, D], not yet scaled
  TensorView<float, 3> out;      // [T, H, D]
  PagedKv kv;                    // one layer, K heads; the chunk's own tokens are already appended
  // Query t attends to tokens [begin[t], end[t]) of kv, [T] each. Both are non-decreasing:
  // positions grow along a layer, so a causal mask or a window is always such a range.
  std::span<const int64_t> begin;
  std::span<const int64_t> end;
  float scale = 1.0f;
  float* log_mass = nullptr;  // [T, H], or null
};

struct PrefillWorkspace {
  AlignedBuffer<float> scratch;  // per thread: converted keys and values, scores, accumulators
};

// Writes out (and log_mass). Tasks are (KV head, block of queries). Keys and values are converted
// once per tile of tokens for all rows of the task; f32 accumulation with the running maximum of
// flash attention (Dao et al. 2022); no [T, S] matrix is formed. With the same keys and values, a
// row is the same bit for bit whatever the number of threads and whatever other queries the call
// has. An empty range gives out = 0 and log_mass = -inf. A score that is NaN or +inf makes its row
// NaN; a value that is not finite may reach rows of up to 48 neighbours that do not see its token.
//
// `account`, if not null, grows by the tokens streamed: those of the union [begin[0], end[T-1]),
// once a call, and their bytes, as read and as resident alike. CHECKs shapes and ranges.
void PrefillAttention(ThreadPool& pool, const PrefillAttentionParams& params,
                      PrefillWorkspace& workspace, AttentionAccount* account);

}  // namespace winnow
