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

#include "ops/query_panels-inl.h"

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

constexpr int64_t kPanelRows = kPanelVectors * static_cast<int64_t>(kLanes);
static_assert(kPrefillRowUnit % kPanelRows == 0 && prefill::kMaxBlockRows % kBlockRows == 0);

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
      // Prefetching the next tile between panels gained less than 1%, so there is none.
      ConvertTokens(params_.kv, task_.head, true, first, last, s_.stride, s_.keys);
      ConvertTokens(params_.kv, task_.head, false, first, last, s_.stride, s_.values);
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
    ScoreKeys<kVectors>(keys, s_.stride, n, q, head_dim_, s_.scores);
    const PanelRows rows = {.begin = s_.begin + panel.first_row,
                            .end = s_.end + panel.first_row,
                            .max = s_.max + panel.first_row,
                            .sum = s_.sum + panel.first_row};
    VF32 factor[kVectors];
    MaskScores<kVectors>(rows, token, 0, std::min(n, panel.all_begin - token), s_.scores);
    MaskScores<kVectors>(rows, token, std::max<int64_t>(0, panel.all_end - token), n, s_.scores);
    RunningSoftmax<kVectors>(rows, n, s_.scores, factor);
    float* const out = s_.out + panel.first_row * s_.stride;
    const float* const values = s_.values + tile_row * s_.stride;
    for (int64_t d = 0; d < head_dim_; d += kBlockRows) {
      MultiplyBlock<kVectors, true>(values + d, 1, s_.stride, s_.scores, n, out + d * kWidth,
                                    factor);
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
