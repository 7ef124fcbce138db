#include "ops/decode_attention_cpu.h"

#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/decode_attention_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/check.h"
#include "ops/attention_state.h"
#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Query heads that are processed together; a larger group takes several turns over the same split,
// whose rows the second-level cache then holds.
constexpr size_t kMaxHeads = 8;
// Room for one split of scores, and for the vector or token block that runs past its end.
constexpr size_t kScoreStride = kDecodeSplitTokens + 16;

// Consecutive rows of one page, and the first of the rows that will be read next, to be prefetched;
// those need not exist.
struct Segment {
  const std::byte* rows = nullptr;
  const std::byte* next = nullptr;
  size_t n_rows = 0;
  size_t row_bytes = 0;
};

// Up to kMaxHeads query heads of one task.
struct HeadBlock {
  const float* q = nullptr;
  float* out = nullptr;
  float* log_mass = nullptr;
  size_t dim = 0;
  size_t stride = 0;  // of q and out
};

// Prefetches values [i, i + kValues) of row `t` of what is read next into the second-level cache. A
// few lines at a time, between the arithmetic: in bursts they fill the processor's miss buffers and
// stall it (measured against a plain read of the same bytes, D = 128, f16, one thread: single lines
// 1.24, bursts of 8, 16, 32 rows 1.4, 1.6, 1.8, no prefetch 1.9).
template <class Row, size_t kValues>
HWY_INLINE void PrefetchNext(const Segment& segment, size_t t, size_t i) {
  constexpr int kReadOnly = 0;
  constexpr int kSecondLevel = 2;
  const std::byte* first = Row::At(segment.next + t * segment.row_bytes, i);
  const auto n_bytes = static_cast<size_t>(Row::At(first, kValues) - first);
  HWY_UNROLL(8)
  for (size_t b = 0; b < n_bytes; b += 64) __builtin_prefetch(first + b, kReadOnly, kSecondLevel);
}

// Token rows whose scores are accumulated together: as many as leave registers for one value of
// every query and one of a key.
template <size_t kHeads>
constexpr size_t TokenBlock() {
  for (size_t tokens : {size_t{4}, size_t{2}}) {
    if (kHeads * tokens + kHeads + 1 <= kVectorRegisters) return tokens;
  }
  return 1;
}

// acc[r * kTokens + t] += q_r[i..] * k_t, where k_t = load(t) is read and converted once.
template <size_t kHeads, size_t kTokens, class LoadKey>
HWY_INLINE void AddProducts(const HeadBlock& heads, size_t i, LoadKey load, VF32* acc) {
  VF32 q[kHeads];
  HWY_UNROLL(8)
  for (size_t r = 0; r < kHeads; ++r) q[r] = hn::LoadU(F32(), heads.q + r * heads.stride + i);
  HWY_UNROLL(4)
  for (size_t t = 0; t < kTokens; ++t) {
    const VF32 k = load(t);
    HWY_UNROLL(8)
    for (size_t r = 0; r < kHeads; ++r) {
      acc[r * kTokens + t] = hn::MulAdd(q[r], k, acc[r * kTokens + t]);
    }
  }
}

// Scores of a segment: scores[r * kScoreStride + t]. Up to three numbers past the end are
// overwritten.
template <class Row, size_t kHeads>
void ScoreSegment(const Segment& segment, const HeadBlock& heads, float* scores) {
  constexpr size_t kTokens = TokenBlock<kHeads>();
  for (size_t t0 = 0; t0 < segment.n_rows; t0 += kTokens) {
    const std::byte* row[kTokens];
    for (size_t t = 0; t < kTokens; ++t) {
      row[t] = segment.rows + std::min(t0 + t, segment.n_rows - 1) * segment.row_bytes;
    }
    VF32 acc[(kHeads * kTokens + 3) / 4 * 4];
    HWY_UNROLL(32)
    for (VF32& a : acc) a = hn::Zero(F32());

    size_t i = 0;
    for (; i + kRowUnit <= heads.dim; i += kRowUnit) {
      for (size_t t = 0; t < kTokens; ++t) PrefetchNext<Row, kRowUnit>(segment, t0 + t, i);
      HWY_UNROLL(8)
      for (size_t j = 0; j < kRowUnit; j += kLanes) {
        AddProducts<kHeads, kTokens>(
            heads, i + j, [&](size_t t) HWY_ATTR { return Row::Load(Row::At(row[t], i), j); }, acc);
      }
    }
    const size_t unit = i;
    for (; i + kLanes <= heads.dim; i += kLanes) {
      AddProducts<kHeads, kTokens>(
          heads, i, [&](size_t t) HWY_ATTR { return Row::Load(Row::At(row[t], unit), i - unit); },
          acc);
    }
    if (i < heads.dim) {
      AddProducts<kHeads, kTokens>(
          heads, i,
          [&](size_t t)
              HWY_ATTR { return Row::LoadTail(Row::At(row[t], unit), i - unit, heads.dim - i); },
          acc);
    }

    HWY_UNROLL(8)
    for (size_t a = 0; a < kHeads * kTokens; a += 4) {
      if constexpr (kTokens == 4) {
        StoreSums4(F32(), acc[a], acc[a + 1], acc[a + 2], acc[a + 3],
                   scores + a / 4 * kScoreStride + t0);
      } else {
        float sums[4];
        StoreSums4(F32(), acc[a], acc[a + 1], acc[a + 2], acc[a + 3], sums);
        for (size_t b = a; b < std::min(a + 4, kHeads * kTokens); ++b) {
          scores[b / kTokens * kScoreStride + t0 + b % kTokens] = sums[b - a];
        }
      }
    }
  }
}

// Turns n scores into exp(score - max) in place; returns their sum and sets `max`. NaN in, NaN out;
// all -inf gives the sum 0.
float ExpScores(float* scores, size_t n, float* max) {
  const F32 f32;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  std::fill(scores + n, scores + n + kLanes, kMinusInfinity);
  VF32 max_lanes = hn::Set(f32, kMinusInfinity);
  for (size_t i = 0; i < n; i += kLanes) {
    max_lanes = hn::Max(max_lanes, hn::LoadU(f32, scores + i));
  }
  *max = hn::GetLane(hn::MaxOfLanes(f32, max_lanes));
  const VF32 offset = hn::Set(f32, *max == kMinusInfinity ? 0.0f : *max);
  const VF32 log2_e = hn::Set(f32, std::numbers::log2e_v<float>);
  VF32 sum = hn::Zero(f32);
  for (size_t i = 0; i < n; i += kLanes) {
    const VF32 p = FastExp2(f32, hn::Mul(hn::Sub(hn::LoadU(f32, scores + i), offset), log2_e));
    hn::StoreU(p, f32, scores + i);
    sum = hn::Add(sum, p);
  }
  return hn::GetLane(hn::SumOfLanes(f32, sum));
}

// out_r[i..] += sum over the segment of p_r[t] * v_t[i..], kVectors vectors wide; every value
// vector is read and converted once. kTail: one vector of which only `tail` values exist.
template <class Row, size_t kHeads, size_t kVectors, bool kTail = false>
HWY_INLINE void AddValues(const Segment& segment, const HeadBlock& heads, const float* p,
                          size_t i) {
  const F32 f32;
  VF32 acc[kHeads * kVectors];
  HWY_UNROLL(8)
  for (size_t r = 0; r < kHeads; ++r) {
    HWY_UNROLL(8)
    for (size_t j = 0; j < kVectors; ++j) {
      acc[r * kVectors + j] = hn::LoadU(f32, heads.out + r * heads.stride + i + j * kLanes);
    }
  }
  // A constant 0 where blocks are whole units, so that the scales of q8_0 are read once.
  const size_t first = kVectors * kLanes % kRowUnit == 0 ? 0 : i % kRowUnit;
  const std::byte* at = Row::At(segment.rows, i - first);
  for (size_t t = 0; t < segment.n_rows; ++t, at += segment.row_bytes) {
    if (i % kRowUnit == 0) {
      PrefetchNext<Row, std::max(kVectors * kLanes, kRowUnit)>(segment, t, i);
    }
    VF32 weight[kHeads];
    HWY_UNROLL(8)
    for (size_t r = 0; r < kHeads; ++r) weight[r] = hn::Set(f32, p[r * kScoreStride + t]);
    HWY_UNROLL(8)
    for (size_t j = 0; j < kVectors; ++j) {
      const VF32 v =
          kTail ? Row::LoadTail(at, first, heads.dim - i) : Row::Load(at, first + j * kLanes);
      HWY_UNROLL(8)
      for (size_t r = 0; r < kHeads; ++r) {
        acc[r * kVectors + j] = hn::MulAdd(weight[r], v, acc[r * kVectors + j]);
      }
    }
  }
  HWY_UNROLL(8)
  for (size_t r = 0; r < kHeads; ++r) {
    HWY_UNROLL(8)
    for (size_t j = 0; j < kVectors; ++j) {
      hn::StoreU(acc[r * kVectors + j], f32, heads.out + r * heads.stride + i + j * kLanes);
    }
  }
}

// Vectors of a value row that are accumulated together.
template <size_t kHeads>
constexpr size_t VectorBlock() {
  for (size_t vectors : {size_t{8}, size_t{4}, size_t{2}}) {
    if (kHeads * vectors + kHeads + 1 <= kVectorRegisters) return vectors;
  }
  return 1;
}

template <class Row, size_t kHeads>
void AddSegment(const Segment& segment, const HeadBlock& heads, const float* p) {
  constexpr size_t kVectors = VectorBlock<kHeads>();
  size_t i = 0;
  for (; i + kVectors * kLanes <= heads.dim; i += kVectors * kLanes) {
    AddValues<Row, kHeads, kVectors>(segment, heads, p, i);
  }
  if constexpr (kVectors == 8) {
    for (; i + 4 * kLanes <= heads.dim; i += 4 * kLanes) {
      AddValues<Row, kHeads, 4>(segment, heads, p, i);
    }
  }
  for (; i + kLanes <= heads.dim; i += kLanes) {
    AddValues<Row, kHeads, 1>(segment, heads, p, i);
  }
  if (i < heads.dim) AddValues<Row, kHeads, 1, true>(segment, heads, p, i);
}

// Calls fn(segment, offset) for the runs of tokens [begin, end) that lie in one page each; offset
// counts from begin. `rows_of(page)` gives the first row of a page; after the last page come
// `last_next`.
template <class RowsOf, class Fn>
HWY_INLINE void ForEachSegment(const DecodeTask& task, const std::byte* last_next, RowsOf rows_of,
                               Fn fn) {
  const PageLayout& layout = *task.kv->layout;
  const int64_t slots = layout.slots;
  int64_t page = task.begin / slots;
  int64_t slot = task.begin % slots;
  for (int64_t token = task.begin; token < task.end; ++page, slot = 0) {
    const int64_t n = std::min(slots - slot, task.end - token);
    const std::byte* next = token + n < task.end ? rows_of(page + 1) : last_next;
    const std::byte* rows = rows_of(page) + static_cast<size_t>(slot) * layout.row_bytes;
    fn(Segment{rows, next, static_cast<size_t>(n), layout.row_bytes},
       static_cast<size_t>(token - task.begin));
    token += n;
  }
}

template <class Row, size_t kHeads>
void RunHeads(const DecodeTask& task, const HeadBlock& heads) {
  const F32 f32;
  alignas(64) float scores[kHeads * kScoreStride];
  const PagedKv& kv = *task.kv;
  const auto keys = [&](int64_t page) HWY_ATTR { return kv.Keys(page, task.head); };
  const auto values = [&](int64_t page) HWY_ATTR { return kv.Values(page, task.head); };

  ForEachSegment(task, values(task.begin / kv.layout->slots), keys,
                 [&](const Segment& segment, size_t offset)
                     HWY_ATTR { ScoreSegment<Row, kHeads>(segment, heads, scores + offset); });

  const auto n = static_cast<size_t>(task.end - task.begin);
  float sums[kHeads];
  for (size_t r = 0; r < kHeads; ++r) {
    float max;
    sums[r] = ExpScores(scores + r * kScoreStride, n, &max);
    heads.log_mass[r] = max + std::log(sums[r]);
    std::fill_n(heads.out + r * heads.stride, heads.stride, 0.0f);
  }

  ForEachSegment(task, task.next_keys, values, [&](const Segment& segment, size_t offset) HWY_ATTR {
    AddSegment<Row, kHeads>(segment, heads, scores + offset);
  });

  for (size_t r = 0; r < kHeads; ++r) {
    const VF32 scale = hn::Set(f32, sums[r] == 0.0f ? 0.0f : 1.0f / sums[r]);
    float* out = heads.out + r * heads.stride;
    for (size_t i = 0; i < heads.dim; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(f32, out + i), scale), f32, out + i);
    }
  }
}

template <class Row>
void RunBlock(const DecodeTask& task, const HeadBlock& heads, int n_heads) {
  switch (n_heads) {
    case 1:
      return RunHeads<Row, 1>(task, heads);
    case 2:
      return RunHeads<Row, 2>(task, heads);
    case 3:
      return RunHeads<Row, 3>(task, heads);
    case 4:
      return RunHeads<Row, 4>(task, heads);
    case 5:
      return RunHeads<Row, 5>(task, heads);
    case 6:
      return RunHeads<Row, 6>(task, heads);
    case 7:
      return RunHeads<Row, 7>(task, heads);
    case 8:
      return RunHeads<Row, 8>(task, heads);
    default:
      WINNOW_CHECK(false, "a block of {} heads", n_heads);
  }
}

void RunTask(const DecodeTask& task) {
  const PageLayout& layout = *task.kv->layout;
  for (int first = 0; first < task.group_heads; first += static_cast<int>(kMaxHeads)) {
    const int n_heads = std::min(task.group_heads - first, static_cast<int>(kMaxHeads));
    const HeadBlock heads{.q = task.q + first * task.row_floats,
                          .out = task.out + first * task.row_floats,
                          .log_mass = task.log_mass + first,
                          .dim = static_cast<size_t>(layout.head_dim),
                          .stride = static_cast<size_t>(task.row_floats)};
    switch (layout.dtype) {
      case DType::kF32:
        RunBlock<F32Row>(task, heads, n_heads);
        break;
      case DType::kF16:
        RunBlock<F16Row>(task, heads, n_heads);
        break;
      case DType::kQ8_0:
        RunBlock<Q8Row>(task, heads, n_heads);
        break;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(RunTask);

void DecodeTaskCpu(const DecodeTask& task) { HWY_DYNAMIC_DISPATCH(RunTask)(task); }

}  // namespace winnow
#endif  // HWY_ONCE
