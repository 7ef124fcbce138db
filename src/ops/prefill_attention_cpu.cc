// Flash attention (Dao et al. 2022) with the roles of the operands turned round: lanes are query
// rows, so keys and values are used as they lie in the cache. Scores = K·Qᵀ and outᵀ = Vᵀ·P are one
// kind of product, a scalar of K or V times vectors of rows, and maxima and sums over tokens need
// no sums over lanes. Only queries and results are transposed, once a task.
//
// Each lane computes the same sums in the same order whatever its neighbours are, and tiles of
// tokens start at multiples of kTileTokens of the sequence: a row does not depend on the chunk,
// block or thread it was computed in.
#include "ops/prefill_attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/check.h"
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/prefill_attention_cpu.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

#ifndef WINNOW_OPS_PREFILL_ATTENTION_CPU_ONCE_
#define WINNOW_OPS_PREFILL_ATTENTION_CPU_ONCE_
namespace winnow {
namespace prefill {

inline constexpr int64_t kTileTokens = 128;
inline constexpr int64_t kMaxBlockRows = 8;
inline constexpr int64_t kMaxLanes = 16;

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Where a task's data lie in its scratch, all row-major. Panels are runs of query rows that the
// kernel computes together; `width` is the number of rows of one.
struct Scratch {
  Scratch(float* base, int64_t rows, int64_t head_dim) : stride(RoundUp(head_dim, kMaxLanes)) {
    const int64_t padded_rows = RoundUp(rows, kPrefillRowUnit);
    const auto take = [&](int64_t n) {
      float* const p = base == nullptr ? nullptr : base + floats;
      floats += RoundUp(n, kMaxLanes);
      return p;
    };
    q = take(padded_rows * stride);
    out = take(padded_rows * stride);
    max = take(padded_rows);
    sum = take(padded_rows);
    begin = take(padded_rows);
    end = take(padded_rows);
    keys = take((kTileTokens + kMaxBlockRows) * stride);
    values = take(kTileTokens * stride);
    scores = take((kTileTokens + kMaxBlockRows) * kPrefillRowUnit);
  }

  int64_t stride;      // floats between rows of keys and values
  int64_t floats = 0;  // of all of it
  float* q;            // [panels][D][width], scaled by scale·log2(e)
  float* out;          // [panels][D][width], not yet divided by sum
  float* max;          // [rows] of the scores, base-2 logarithms
  float* sum;          // [rows] of 2^(score - max)
  float* begin;        // [rows] first visible token
  float* end;          // [rows] one past the last visible token
  float* keys;         // [tokens of the tile][stride]
  float* values;       // [tokens of the tile][stride]
  float* scores;       // [tokens of the tile][width], then 2^(score - max)
};

}  // namespace prefill
}  // namespace winnow
#endif  // WINNOW_OPS_PREFILL_ATTENTION_CPU_ONCE_

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {
namespace {

using prefill::kTileTokens;
using prefill::RoundUp;
using prefill::Scratch;

// Register blocking: kBlockRows × kPanelVectors accumulators, the vectors of one step and one
// broadcast scalar: 8·3 + 3 + 1 of 32 registers, 4·3 + 3 + 1 of 16. Each step then loads fewer
// operands than it multiplies, and more accumulators are in flight than two FMA ports of latency 4
// or 5 need.
constexpr int kBlockRows = kVectorRegisters == 32 ? 8 : 4;
constexpr int kPanelVectors = 3;
constexpr int64_t kPanelRows = kPanelVectors * static_cast<int64_t>(kLanes);
static_assert(kPrefillRowUnit % kPanelRows == 0 && prefill::kMaxBlockRows % kBlockRows == 0);

// c [kBlockRows][width] = a·b, or c·factor + a·b with a factor a column; a(i, step) lies at
// a[i·row_stride + step·step_stride], b is [steps][width], width = kVectors·kLanes.
template <int kVectors, bool kAccumulate>
HWY_INLINE void MultiplyBlock(const float* HWY_RESTRICT a, int64_t row_stride, int64_t step_stride,
                              const float* HWY_RESTRICT b, int64_t steps, float* HWY_RESTRICT c,
                              const VF32* factor) {
  constexpr int64_t kWidth = kVectors * static_cast<int64_t>(kLanes);
  const F32 f32;
  VF32 sums[kBlockRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kBlockRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = kAccumulate ? hn::Mul(hn::Load(f32, c + i * kWidth + v * kLanes), factor[v])
                               : hn::Zero(f32);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    VF32 columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::Load(f32, b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kBlockRows; ++i) {
      const VF32 scalar = hn::Set(f32, a[i * row_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(scalar, columns[v], sums[i][v]);
    }
    a += step_stride;
    b += kWidth;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kBlockRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::Store(sums[i][v], f32, c + i * kWidth + v * kLanes);
  }
}

// A run of rows computed together and the tokens they see: some row sees [begin, end), all rows see
// [all_begin, all_end) where that is not empty.
struct Panel {
  int64_t first_row = 0;
  int vectors = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t all_begin = 0;
  int64_t all_end = 0;
};

class Task {
 public:
  Task(const PrefillAttentionParams& params, const PrefillTask& task, std::span<float> scratch)
      : params_(params),
        task_(task),
        head_dim_(params.kv.layout->head_dim),
        group_(params.q.shape[1] / params.kv.layout->kv_heads),
        rows_(task.n * group_),
        s_(scratch.data(), rows_, head_dim_) {}

  void Run() {
    for (int64_t row = 0; row < rows_; row += kPanelRows) Pack(MakePanel(row));
    const int64_t begin = params_.begin[task_.first];
    const int64_t end = params_.end[task_.first + task_.n - 1];
    for (int64_t tile = begin / kTileTokens * kTileTokens; tile < end; tile += kTileTokens) {
      const int64_t first = std::max(begin, tile);
      const int64_t last = std::min(end, tile + kTileTokens);
      ConvertTile(first, last);
      for (int64_t row = 0; row < rows_; row += kPanelRows) Attend(MakePanel(row), first, last);
    }
    for (int64_t row = 0; row < rows_; row += kPanelRows) Unpack(MakePanel(row));
  }

 private:
  // Query and output rows, [D] each, lie at this offset of q and out.
  int64_t RowOffset(int64_t row) const {
    const int64_t t = task_.first + row / group_;
    return (t * params_.q.shape[1] + task_.head * group_ + row % group_) * head_dim_;
  }

  Panel MakePanel(int64_t first_row) const {
    const int64_t n = std::min(kPanelRows, rows_ - first_row);
    const int64_t first = task_.first + first_row / group_;
    const int64_t last = task_.first + (first_row + n - 1) / group_;
    return {.first_row = first_row,
            .vectors = static_cast<int>(RoundUp(n, kLanes) / static_cast<int64_t>(kLanes)),
            .begin = params_.begin[first],
            .end = params_.end[last],
            .all_begin = params_.begin[last],
            .all_end = params_.end[first]};
  }

  // Transposes and scales the panel's queries and starts its rows. Lanes after the last row hold
  // zero queries that see nothing.
  void Pack(const Panel& panel) {
    const int64_t width = panel.vectors * static_cast<int64_t>(kLanes);
    const float scale = params_.scale * std::numbers::log2e_v<float>;
    float* const q = s_.q + panel.first_row * s_.stride;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t row = panel.first_row + i;
      const bool used = row < rows_;
      const int64_t t = task_.first + row / group_;
      s_.max[row] = -std::numeric_limits<float>::infinity();
      s_.sum[row] = 0;
      s_.begin[row] = used ? static_cast<float>(params_.begin[t]) : 0.0f;
      s_.end[row] = used ? static_cast<float>(params_.end[t]) : 0.0f;
      const float* const source = params_.q.data + (used ? RowOffset(row) : 0);
      for (int64_t d = 0; d < head_dim_; ++d) q[d * width + i] = used ? source[d] * scale : 0.0f;
    }
    std::fill_n(s_.out + panel.first_row * s_.stride, s_.stride * width, 0.0f);
  }

  // Prefetching the next tile between panels gained less than 1%, so there is none.
  void ConvertTile(int64_t first, int64_t last) {
    switch (params_.kv.layout->dtype) {
      case DType::kF32:
        return ConvertRows<F32Row>(first, last);
      case DType::kF16:
        return ConvertRows<F16Row>(first, last);
      case DType::kQ8_0:
        return ConvertRows<Q8Row>(first, last);
    }
  }

  template <typename Row>
  void ConvertRows(int64_t first, int64_t last) {
    const PageLayout& layout = *params_.kv.layout;
    for (int64_t token = first; token < last;) {
      const int64_t page = token / layout.slots;
      const int64_t slot = token % layout.slots;
      const int64_t n = std::min(last - token, layout.slots - slot);
      const std::byte* key = params_.kv.Keys(page, task_.head) + slot * layout.row_bytes;
      const std::byte* value = params_.kv.Values(page, task_.head) + slot * layout.row_bytes;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = (token - first + i) * s_.stride;
        ConvertRow<Row>(key + i * layout.row_bytes, s_.keys + row);
        ConvertRow<Row>(value + i * layout.row_bytes, s_.values + row);
      }
      token += n;
    }
    // Scores are computed for whole blocks of tokens.
    std::fill_n(s_.keys + (last - first) * s_.stride, kBlockRows * s_.stride, 0.0f);
  }

  template <typename Row>
  void ConvertRow(const std::byte* row, float* to) const {
    const F32 f32;
    int64_t i = 0;
    for (; i + static_cast<int64_t>(kRowUnit) <= head_dim_; i += kRowUnit) {
      const std::byte* const at = Row::At(row, i);
      for (size_t j = 0; j < kRowUnit; j += kLanes) hn::Store(Row::Load(at, j), f32, to + i + j);
    }
    const std::byte* const at = Row::At(row, i);
    for (int64_t j = 0; i + j < head_dim_; j += kLanes) {
      const int64_t n = head_dim_ - i - j;
      hn::Store(n >= static_cast<int64_t>(kLanes) ? Row::Load(at, j) : Row::LoadTail(at, j, n), f32,
                to + i + j);
    }
  }

  // Adds the tokens of [first, last), which are converted, that the panel sees.
  void Attend(const Panel& panel, int64_t first, int64_t last) {
    const int64_t from = std::max(first, panel.begin);
    const int64_t to = std::min(last, panel.end);
    if (from >= to) return;
    switch (panel.vectors) {
      case 1:
        return AttendVectors<1>(panel, from, to - from, from - first);
      case 2:
        return AttendVectors<2>(panel, from, to - from, from - first);
      case 3:
        return AttendVectors<3>(panel, from, to - from, from - first);
      default:
        WINNOW_CHECK(false);
    }
  }

  template <int kVectors>
  void AttendVectors(const Panel& panel, int64_t token, int64_t n, int64_t tile_row) {
    constexpr int64_t kWidth = kVectors * static_cast<int64_t>(kLanes);
    const float* const q = s_.q + panel.first_row * s_.stride;
    const float* const keys = s_.keys + tile_row * s_.stride;
    for (int64_t i = 0; i < n; i += kBlockRows) {
      MultiplyBlock<kVectors, false>(keys + i * s_.stride, s_.stride, 1, q, head_dim_,
                                     s_.scores + i * kWidth, nullptr);
    }
    VF32 factor[kVectors];
    Mask<kVectors>(panel, token, 0, std::min(n, panel.all_begin - token));
    Mask<kVectors>(panel, token, std::max<int64_t>(0, panel.all_end - token), n);
    Softmax<kVectors>(panel, n, factor);
    float* const out = s_.out + panel.first_row * s_.stride;
    const float* const values = s_.values + tile_row * s_.stride;
    for (int64_t d = 0; d < head_dim_; d += kBlockRows) {
      MultiplyBlock<kVectors, true>(values + d, 1, s_.stride, s_.scores, n, out + d * kWidth,
                                    factor);
    }
  }

  // Of the tokens first..last-1 after `token`, scores of those that a row does not see become -inf,
  // whatever they were.
  template <int kVectors>
  void Mask(const Panel& panel, int64_t token, int64_t first, int64_t last) {
    const F32 f32;
    const VF32 hidden = hn::Set(f32, -std::numeric_limits<float>::infinity());
    for (int v = 0; v < kVectors; ++v) {
      const VF32 begin = hn::Load(f32, s_.begin + panel.first_row + v * kLanes);
      const VF32 end = hn::Load(f32, s_.end + panel.first_row + v * kLanes);
      for (int64_t i = first; i < last; ++i) {
        float* const at = s_.scores + (i * kVectors + v) * kLanes;
        const VF32 position = hn::Set(f32, static_cast<float>(token + i));
        const auto seen = hn::And(hn::Ge(position, begin), hn::Lt(position, end));
        hn::Store(hn::IfThenElse(seen, hn::Load(f32, at), hidden), f32, at);
      }
    }
  }

  // Turns the scores of n tokens into weights under the running maximum; `factor` brings what was
  // summed before to the new maximum (1 where it did not grow).
  template <int kVectors>
  HWY_INLINE void Softmax(const Panel& panel, int64_t n, VF32* factor) {
    const F32 f32;
    const VF32 lowest = hn::Set(f32, -std::numeric_limits<float>::infinity());
    VF32 max[kVectors];
    VF32 sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      max[v] = hn::Load(f32, s_.max + panel.first_row + v * kLanes);
      sum[v] = hn::Zero(f32);
    }
    const float* score = s_.scores;
    for (int64_t i = 0; i < n; ++i) {
      for (int v = 0; v < kVectors; ++v, score += kLanes) {
        max[v] = hn::Max(hn::Load(f32, score), max[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      float* const row_max = s_.max + panel.first_row + v * kLanes;
      const VF32 old_max = hn::Load(f32, row_max);
      hn::Store(max[v], f32, row_max);
      // A row that has seen nothing yet: -inf - 0 has weight 0, where -inf + inf would be NaN.
      max[v] = hn::IfThenZeroElse(hn::Eq(max[v], lowest), max[v]);
      factor[v] = FastExp2(f32, hn::Sub(old_max, max[v]));
    }
    float* weight = s_.scores;
    for (int64_t i = 0; i < n; ++i) {
      for (int v = 0; v < kVectors; ++v, weight += kLanes) {
        const VF32 w = FastExp2(f32, hn::Sub(hn::Load(f32, weight), max[v]));
        sum[v] = hn::Add(sum[v], w);
        hn::Store(w, f32, weight);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      float* const row_sum = s_.sum + panel.first_row + v * kLanes;
      hn::Store(hn::MulAdd(hn::Load(f32, row_sum), factor[v], sum[v]), f32, row_sum);
    }
  }

  void Unpack(const Panel& panel) {
    const int64_t width = panel.vectors * static_cast<int64_t>(kLanes);
    const int64_t end = std::min(panel.first_row + width, rows_);
    for (int64_t row = panel.first_row; row < end; ++row) {
      const float* const from = s_.out + panel.first_row * s_.stride + (row - panel.first_row);
      float* const to = params_.out.data + RowOffset(row);
      const float sum = s_.sum[row];
      const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
      for (int64_t d = 0; d < head_dim_; ++d) to[d] = from[d * width] * inverse;
      if (params_.log_mass != nullptr) {
        params_.log_mass[RowOffset(row) / head_dim_] = static_cast<float>(
            (static_cast<double>(s_.max[row]) + std::log2(static_cast<double>(sum))) *
            std::numbers::ln2);
      }
    }
  }

  const PrefillAttentionParams& params_;
  const PrefillTask& task_;
  const int64_t head_dim_;
  const int64_t group_;  // R
  const int64_t rows_;
  Scratch s_;
};

void RunTask(const PrefillAttentionParams& params, const PrefillTask& task,
             std::span<float> scratch) {
  Task(params, task, scratch).Run();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(RunTask);

int64_t PrefillScratchFloats(int64_t rows, int64_t head_dim) {
  return prefill::Scratch(nullptr, rows, head_dim).floats;
}

void RunPrefillTask(const PrefillAttentionParams& params, const PrefillTask& task,
                    std::span<float> scratch) {
  WINNOW_CHECK(static_cast<int64_t>(scratch.size()) >=
               PrefillScratchFloats(task.n * params.q.shape[1] / params.kv.layout->kv_heads,
                                    params.kv.layout->head_dim));
  HWY_DYNAMIC_DISPATCH(RunTask)(params, task, scratch);
}

}  // namespace winnow
#endif  // HWY_ONCE
