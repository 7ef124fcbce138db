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
#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

template <SummaryScore kScore>
HWY_INLINE float ScoreOf(const float* q, const float* a, const float* b, size_t dim) {
  const F32 f32;
  VF32 sum = hn::Zero(f32);
  VF32 half_squares = hn::Zero(f32);
  for (size_t i = 0; i < dim; i += kLanes) {
    const VF32 query = hn::LoadU(f32, q + i);
    const VF32 first = hn::Mul(query, hn::LoadU(f32, a + i));
    if constexpr (kScore == SummaryScore::kBox) {
      // A NaN must not lose against a number.
      const VF32 second = hn::Mul(query, hn::LoadU(f32, b + i));
      sum = hn::Add(sum, hn::IfThenElse(hn::Gt(first, second), first, second));
      sum = hn::Add(sum, hn::Mul(hn::Zero(f32), first));
    } else {
      sum = hn::Add(sum, first);
    }
    if constexpr (kScore == SummaryScore::kMeanStd) {
      const VF32 spread = hn::Mul(query, hn::LoadU(f32, b + i));
      half_squares = hn::MulAdd(spread, spread, half_squares);
    }
  }
  sum = hn::MulAdd(hn::Set(f32, 0.5f), half_squares, sum);
  return hn::GetLane(hn::SumOfLanes(f32, sum));
}

// The two statistics of a page, or the mean twice.
struct Statistics {
  const float* a;
  const float* b;
};

template <SummaryScore kScore>
HWY_INLINE Statistics StatisticsOf(const PageScanTask& task, int64_t page) {
  const PagedKv& kv = *task.kv;
  const auto floats = [&](Plane plane) {
    return reinterpret_cast<const float*>(kv.PlaneOf(plane, page, task.head));
  };
  const float* a = floats(kScore == SummaryScore::kBox ? Plane::kKeyBox : Plane::kKeyMean);
  if constexpr (kScore == SummaryScore::kMean) return {a, a};
  if constexpr (kScore == SummaryScore::kBox) return {a, a + kv.layout->padded_dim};
  return {a, floats(Plane::kKeyDeviation)};
}

template <SummaryScore kScore>
HWY_INLINE void Prefetch(const Statistics& statistics, size_t dim) {
  for (size_t i = 0; i < dim; i += 64 / sizeof(float)) {
    __builtin_prefetch(statistics.a + i);
    if (kScore != SummaryScore::kMean) __builtin_prefetch(statistics.b + i);
  }
}

// Pages between the one that is scored and the one that is fetched. The statistics of a page are a
// few lines far from those of the next, which no hardware prefetcher follows.
constexpr int64_t kPagesAhead = 2;

template <SummaryScore kScore>
void ScanRun(const PageScanTask& task) {
  const PagedKv& kv = *task.kv;
  const auto dim = static_cast<size_t>(kv.layout->padded_dim);
  for (int64_t p = task.begin_page; p < task.end_page; ++p) {
    if (p + kPagesAhead < task.masses.n_pages) {
      Prefetch<kScore>(StatisticsOf<kScore>(task, p + kPagesAhead), dim);
    }
    const auto [a, b] = StatisticsOf<kScore>(task, p);
    for (int r = 0; r < task.group_heads; ++r) {
      const int64_t at = r * task.masses.stride + p;
      task.masses.max[at] = ScoreOf<kScore>(task.q + static_cast<size_t>(r) * dim, a, b, dim);
      task.masses.sum[at] = static_cast<float>(kv.layout->slots);
    }
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
  float reference = max[0];
  for (size_t p = 1; p < n; ++p) reference = std::max(reference, max[p]);
  // Computes as many masses as `d` has lanes.
  const auto mass = [&](auto d, size_t p) HWY_ATTR {
    const auto above = hn::Sub(hn::LoadU(d, max + p), hn::Set(d, reference));
    const auto scaled = hn::Mul(above, hn::Set(d, std::numbers::log2e_v<float>));
    return hn::Mul(FastExp2(d, scaled), hn::LoadU(d, sum + p));
  };
  const F32 f32;
  VF32 total_lanes = hn::Zero(f32);
  size_t p = 0;
  for (; p + kLanes <= n; p += kLanes) {
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
