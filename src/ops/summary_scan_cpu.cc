#include "ops/summary_scan_cpu.h"

#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/summary_scan_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/attention_state.h"
#include "ops/byte_products-inl.h"
#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// scores[r] of kHeads <= kMaxHeadBlock query heads `dim` apart.
template <SummaryScore kScore, size_t kHeads>
HWY_INLINE void ScorePage(const float* q, const std::byte* a, const std::byte* b, size_t dim,
                          float* scores) {
  const F32 f32;
  VF32 sum[kMaxHeadBlock];
  VF32 squares[kMaxHeadBlock];
  HWY_UNROLL(4)
  for (size_t r = 0; r < kMaxHeadBlock; ++r) sum[r] = squares[r] = hn::Zero(f32);
  for (size_t i = 0; i < dim; i += kLanes) {
    const VF32 first_row = F16Row::Load(a, i);
    const VF32 second_row = kScore == SummaryScore::kMean ? first_row : F16Row::Load(b, i);
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) {
      const VF32 query = hn::LoadU(f32, q + r * dim + i);
      if constexpr (kScore == SummaryScore::kBox) {
        const VF32 first = hn::Mul(query, first_row);
        const VF32 second = hn::Mul(query, second_row);
        sum[r] = hn::Add(sum[r], hn::IfThenElse(hn::Gt(first, second), first, second));
        // A NaN must not lose against a number.
        squares[r] = hn::MulAdd(hn::Zero(f32), first, squares[r]);
      } else {
        sum[r] = hn::MulAdd(query, first_row, sum[r]);
      }
      if constexpr (kScore == SummaryScore::kMeanStd) {
        const VF32 spread = hn::Mul(query, second_row);
        squares[r] = hn::MulAdd(spread, spread, squares[r]);
      }
    }
  }
  HWY_UNROLL(4)
  for (size_t r = 0; r < kHeads; ++r) {
    sum[r] = hn::MulAdd(hn::Set(f32, 0.5f), squares[r], sum[r]);
  }
  StoreSums4(f32, sum[0], sum[1], sum[2], sum[3], scores);
}

// The two rows of statistics of a page, or the mean twice.
struct Statistics {
  const std::byte* a;
  const std::byte* b;
};

template <SummaryScore kScore>
HWY_INLINE Statistics StatisticsOf(const PageScanTask& task, const PageScanItem& item) {
  const std::byte* a =
      item.PlaneOf(task, kScore == SummaryScore::kBox ? Plane::kKeyBox : Plane::kKeyMean);
  if constexpr (kScore == SummaryScore::kMean) return {a, a};
  if constexpr (kScore == SummaryScore::kBox) return {a, a + task.kv->layout->KeyRowBytes()};
  return {a, item.PlaneOf(task, Plane::kKeyDeviation)};
}

// Items between the one that is scored and the one that is fetched, into the second cache. Rows are
// a few lines a head, which the processor's own prefetcher does not lead far enough ahead.
constexpr int64_t kItemsAhead = 12;

// One row or two; mean and deviation lie apart.
template <SummaryScore kScore>
HWY_INLINE void Prefetch(const Statistics& statistics, size_t row_bytes) {
  for (size_t i = 0; i < row_bytes; i += 64) {
    __builtin_prefetch(statistics.a + i, 0, 2);
    if constexpr (kScore != SummaryScore::kMean) __builtin_prefetch(statistics.b + i, 0, 2);
  }
}

template <SummaryScore kScore>
void ScanRun(const PageScanTask& task) {
  const auto dim = static_cast<size_t>(task.kv->layout->padded_dim);
  const auto stride = static_cast<size_t>(task.masses.stride);
  const auto slots = static_cast<float>(task.kv->layout->slots);
  for (int64_t i = 0; i < task.size(); ++i) {
    if (i + kItemsAhead < task.size()) {
      const PageScanItem ahead(task, i + kItemsAhead);
      Prefetch<kScore>(StatisticsOf<kScore>(task, ahead), task.kv->layout->KeyRowBytes());
    }
    const PageScanItem item(task, i);
    const auto [a, b] = StatisticsOf<kScore>(task, item);
    const auto at = static_cast<size_t>(item.MassIndex(task));
    const float* q = task.q + static_cast<size_t>(item.head) * task.group_heads * dim;
    ForEachHeadBlock(task.group_heads, [&, a = a, b = b](auto n_heads, size_t first) HWY_ATTR {
      float scores[kMaxHeadBlock];
      ScorePage<kScore, n_heads()>(q + first * dim, a, b, dim, scores);
      for (size_t r = 0; r < n_heads(); ++r) {
        task.masses.max[at + (first + r) * stride] = scores[r];
        task.masses.sum[at + (first + r) * stride] = slots;
      }
    });
  }
}

void ScanSummaries(const PageScanTask& task, SummaryScore score) {
  switch (score) {
    case SummaryScore::kMean:
      return ScanRun<SummaryScore::kMean>(task);
    case SummaryScore::kMeanStd:
      return ScanRun<SummaryScore::kMeanStd>(task);
    case SummaryScore::kBox:
      return ScanRun<SummaryScore::kBox>(task);
  }
}

// The masses of one query head over their sum, added to `pooled`.
void SharesOfHead(const float* max, const float* sum, size_t n, float* shares, float* pooled,
                  float* log_total) {
  const F32 f32;
  float reference = max[0];
  size_t p = 0;
  if (n >= kLanes) {
    VF32 largest = hn::LoadU(f32, max);
    for (p = kLanes; p + kLanes <= n; p += kLanes) {
      largest = hn::Max(largest, hn::LoadU(f32, max + p));
    }
    reference = hn::GetLane(hn::MaxOfLanes(f32, largest));
  }
  for (; p < n; ++p) reference = std::max(reference, max[p]);
  // Computes as many masses as `d` has lanes.
  const auto mass = [&](auto d, size_t p) HWY_ATTR {
    const auto above = hn::Sub(hn::LoadU(d, max + p), hn::Set(d, reference));
    const auto scaled = hn::Mul(above, hn::Set(d, std::numbers::log2e_v<float>));
    return hn::Mul(FastExp2(d, scaled), hn::LoadU(d, sum + p));
  };
  VF32 total_lanes = hn::Zero(f32);
  for (p = 0; p + kLanes <= n; p += kLanes) {
    const VF32 m = mass(f32, p);
    hn::StoreU(m, f32, shares + p);
    total_lanes = hn::Add(total_lanes, m);
  }
  float total = hn::GetLane(hn::SumOfLanes(f32, total_lanes));
  for (; p < n; ++p) {
    shares[p] = hn::GetLane(mass(hn::CappedTag<float, 1>(), p));
    total += shares[p];
  }
  *log_total = reference + std::log(total);
  const float unit = 1.0f / total;
  for (p = 0; p < n; ++p) {
    shares[p] *= unit;
    pooled[p] += shares[p];
  }
}

void Shares(const PageMasses& masses, int group_heads, float* shares, float* pooled,
            float* log_totals) {
  const auto n = static_cast<size_t>(masses.n_pages);
  std::fill_n(pooled, n, 0.0f);
  std::fill_n(log_totals, group_heads, kEmptyLogMass);
  if (n == 0) return;
  for (int r = 0; r < group_heads; ++r) {
    SharesOfHead(masses.max + r * masses.stride, masses.sum + r * masses.stride, n,
                 shares + r * masses.stride, pooled, log_totals + r);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(ScanSummaries);
HWY_EXPORT(Shares);

void SummaryScanCpu(const PageScanTask& task, SummaryScore score) {
  HWY_DYNAMIC_DISPATCH(ScanSummaries)(task, score);
}

void PageSharesCpu(const PageMasses& masses, int group_heads, float* shares, float* pooled,
                   float* log_totals) {
  HWY_DYNAMIC_DISPATCH(Shares)(masses, group_heads, shares, pooled, log_totals);
}

}  // namespace winnow
#endif  // HWY_ONCE
