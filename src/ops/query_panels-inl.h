// Products of tiles of keys or values with panels of query rows, and softmax over such scores, for
// kernels whose lanes are query rows. Included once for each of Highway's targets.
#if defined(WINNOW_OPS_QUERY_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_QUERY_PANELS_INL_H_
#undef WINNOW_OPS_QUERY_PANELS_INL_H_
#else
#define WINNOW_OPS_QUERY_PANELS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kv/sequence_kv.h"
#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Register blocking: kBlockRows × kPanelVectors accumulators, the vectors of one step and one
// broadcast scalar: 8·3 + 3 + 1 of 32 registers, 4·3 + 3 + 1 of 16. Each step then loads fewer
// operands than it multiplies, and more accumulators are in flight than two FMA ports of latency 4
// or 5 need.
inline constexpr int kBlockRows = kVectorRegisters == 32 ? 8 : 4;
inline constexpr int kPanelVectors = 3;

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

template <typename Row>
HWY_INLINE void ConvertRow(const std::byte* row, int64_t dim, float* to) {
  const F32 f32;
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kRowUnit) <= dim; i += kRowUnit) {
    const std::byte* const at = Row::At(row, i);
    for (size_t j = 0; j < kRowUnit; j += kLanes) hn::Store(Row::Load(at, j), f32, to + i + j);
  }
  const std::byte* const at = Row::At(row, i);
  for (int64_t j = 0; i + j < dim; j += kLanes) {
    const int64_t n = dim - i - j;
    hn::Store(n >= static_cast<int64_t>(kLanes) ? Row::Load(at, j) : Row::LoadTail(at, j, n), f32,
              to + i + j);
  }
}

// Tokens [first, last) of the keys (values) of one head, as f32 in rows of `stride`. Keys are
// followed by kBlockRows zero rows: scores are computed for whole blocks of tokens.
template <typename Row>
void ConvertRows(const PagedKv& kv, int head, bool keys, int64_t first, int64_t last,
                 int64_t stride, float* to) {
  const PageLayout& layout = *kv.layout;
  for (int64_t token = first; token < last;) {
    const int64_t page = token / layout.slots;
    const int64_t slot = token % layout.slots;
    const int64_t n = std::min(last - token, layout.slots - slot);
    const std::byte* row =
        (keys ? kv.Keys(page, head) : kv.Values(page, head)) + slot * layout.row_bytes;
    for (int64_t i = 0; i < n; ++i, row += layout.row_bytes, to += stride) {
      ConvertRow<Row>(row, layout.head_dim, to);
    }
    token += n;
  }
  if (keys) std::fill_n(to, kBlockRows * stride, 0.0f);
}

inline void ConvertTokens(const PagedKv& kv, int head, bool keys, int64_t first, int64_t last,
                          int64_t stride, float* to) {
  switch (kv.layout->dtype) {
    case DType::kF32:
      return ConvertRows<F32Row>(kv, head, keys, first, last, stride, to);
    case DType::kF16:
      return ConvertRows<F16Row>(kv, head, keys, first, last, stride, to);
    case DType::kQ8_0:
      return ConvertRows<Q8Row>(kv, head, keys, first, last, stride, to);
  }
}

// Scores [n rounded up to kBlockRows][width] of n keys, which a whole block may follow, with the
// panel's queries [D][width].
template <int kVectors>
HWY_INLINE void ScoreKeys(const float* keys, int64_t stride, int64_t n, const float* q,
                          int64_t head_dim, float* scores) {
  for (int64_t i = 0; i < n; i += kBlockRows) {
    MultiplyBlock<kVectors, false>(keys + i * stride, stride, 1, q, head_dim,
                                   scores + i * kVectors * static_cast<int64_t>(kLanes), nullptr);
  }
}

// The state of a panel's rows, one float a row.
struct PanelRows {
  const float* begin;  // first visible token
  const float* end;    // one past the last visible token
  float* max;          // of the scores so far, base-2 logarithms
  float* sum;          // of 2^(score - max)
};

// Of the tokens first..last-1 after `token`, scores of those that a row does not see become -inf,
// whatever they were.
template <int kVectors>
void MaskScores(const PanelRows& rows, int64_t token, int64_t first, int64_t last, float* scores) {
  const F32 f32;
  const VF32 hidden = hn::Set(f32, -std::numeric_limits<float>::infinity());
  for (int v = 0; v < kVectors; ++v) {
    const VF32 begin = hn::Load(f32, rows.begin + v * kLanes);
    const VF32 end = hn::Load(f32, rows.end + v * kLanes);
    for (int64_t i = first; i < last; ++i) {
      float* const at = scores + (i * kVectors + v) * kLanes;
      const VF32 position = hn::Set(f32, static_cast<float>(token + i));
      const auto seen = hn::And(hn::Ge(position, begin), hn::Lt(position, end));
      hn::Store(hn::IfThenElse(seen, hn::Load(f32, at), hidden), f32, at);
    }
  }
}

// Turns the scores of n tokens into weights under the running maximum; `factor` brings what was
// summed before to the new maximum (1 where it did not grow).
template <int kVectors>
HWY_INLINE void RunningSoftmax(const PanelRows& rows, int64_t n, float* scores, VF32* factor) {
  const F32 f32;
  const VF32 lowest = hn::Set(f32, -std::numeric_limits<float>::infinity());
  VF32 max[kVectors];
  VF32 sum[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    max[v] = hn::Load(f32, rows.max + v * kLanes);
    sum[v] = hn::Zero(f32);
  }
  const float* score = scores;
  for (int64_t i = 0; i < n; ++i) {
    for (int v = 0; v < kVectors; ++v, score += kLanes) {
      max[v] = hn::Max(hn::Load(f32, score), max[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    float* const row_max = rows.max + v * kLanes;
    const VF32 old_max = hn::Load(f32, row_max);
    hn::Store(max[v], f32, row_max);
    // A row that has seen nothing yet: -inf - 0 has weight 0, where -inf + inf would be NaN.
    max[v] = hn::IfThenZeroElse(hn::Eq(max[v], lowest), max[v]);
    factor[v] = FastExp2(f32, hn::Sub(old_max, max[v]));
  }
  float* weight = scores;
  for (int64_t i = 0; i < n; ++i) {
    for (int v = 0; v < kVectors; ++v, weight += kLanes) {
      const VF32 w = FastExp2(f32, hn::Sub(hn::Load(f32, weight), max[v]));
      sum[v] = hn::Add(sum[v], w);
      hn::Store(w, f32, weight);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    float* const row_sum = rows.sum + v * kLanes;
    hn::Store(hn::MulAdd(hn::Load(f32, row_sum), factor[v], sum[v]), f32, row_sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
