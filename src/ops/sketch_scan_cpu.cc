#include "ops/sketch_scan_cpu.h"

#define WINNOW_BYTE_PRODUCTS
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sketch_scan_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/byte_products-inl.h"
#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Items from the one that is read to the one that is prefetched.
constexpr int64_t kItemsAhead = 4;
constexpr size_t kSlotStride = kMaxSketchSlots;
constexpr float kLog2E = std::numbers::log2e_v<float>;

// What the products with the codes of one page need, for four query heads (of which the last may
// be unused): score = offset + scale·Σ factor·code.
struct PageFactors {
  alignas(64) float exact[kMaxHeadBlock * kMaxSketchDim];     // [heads, dim]: q_c·step_c
  alignas(64) int8_t rounded[kMaxHeadBlock * kMaxSketchDim];  // the same over `scale`
  float scale[kMaxHeadBlock];
  float offset[kMaxHeadBlock];
};

struct Page {
  const std::byte* minimum;
  const std::byte* step;
  const std::byte* codes;
};

// The factors, and as integers f̂ at most 127 where the codes are multiplied so. Then their rounding
// errors e = f − f̂ meet the codes less their centre: Σ f·code = Σ f̂·code + Σ e·centre + Σ e·(code −
// centre), of which the last is neglected.
template <int kBits, size_t kHeads, size_t kDim>
HWY_INLINE void MakeFactors(const Page& page, const float* q, size_t any_dim, LinesAhead& ahead,
                            PageFactors& factors) {
  const size_t dim = kDim == 0 ? any_dim : kDim;
  constexpr float kCentre = kHasByteProducts<kBits> ? ((1 << kBits) - 1) / 2.0f : 0.0f;
  const F32 f32;
  const VF32 centre = hn::Set(f32, kCentre);
  VF32 offset[kMaxHeadBlock];
  VF32 largest[kMaxHeadBlock];
  HWY_UNROLL(4)
  for (size_t r = 0; r < kMaxHeadBlock; ++r) offset[r] = largest[r] = hn::Zero(f32);
  for (size_t i = 0; i < dim; i += kLanes) {
    if (i % 16 == 0) ahead.Prefetch();  // for 32 bytes of minima and as many of steps
    const VF32 step = F16Row::Load(page.step, i);
    const VF32 middle = hn::MulAdd(step, centre, F16Row::Load(page.minimum, i));
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) {
      const VF32 query = hn::LoadU(f32, q + r * dim + i);
      const VF32 product = hn::Mul(query, step);
      hn::StoreU(product, f32, factors.exact + r * dim + i);
      offset[r] = hn::MulAdd(query, middle, offset[r]);
      largest[r] = MaxMagnitude(largest[r], product);
    }
  }
  if constexpr (kHasByteProducts<kBits>) {
    float levels[kMaxHeadBlock];
    StoreReduced4(f32, largest[0], largest[1], largest[2], largest[3], MaxOp(), levels);
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) {
      // Of all zeros, which 0 does not divide.
      const float level = std::max(levels[r], std::numeric_limits<float>::min() * 127);
      factors.scale[r] = level / 127.0f;
      ahead.Prefetch();
      ahead.Prefetch();
      const VF32 sum = StoreRoundedRow(factors.exact + r * dim, hn::Set(f32, 127.0f / level), dim,
                                       factors.rounded + r * dim);
      offset[r] = hn::NegMulAdd(sum, hn::Set(f32, kCentre * factors.scale[r]), offset[r]);
    }
  }
  StoreSums4(f32, offset[0], offset[1], offset[2], offset[3], factors.offset);
}

// scores[r * kSlotStride + t] of the tokens of one page, times log2(e).
template <int kBits, size_t kHeads, size_t kDim>
HWY_INLINE void ScorePage(const Page& page, size_t any_dim, size_t slots,
                          const PageFactors& factors, LinesAhead& ahead, float* scores) {
  const size_t dim = kDim == 0 ? any_dim : kDim;
  const size_t n_lines = dim * kBits / 32;
  const size_t group_bytes = n_lines * 64;
  if constexpr (kHasByteProducts<kBits>) {
    const auto store = [&](size_t r, size_t t, auto sums) HWY_ATTR {
      const hn::Rebind<float, hn::DFromV<decltype(sums)>> f32;
      hn::StoreU(hn::MulAdd(hn::ConvertTo(f32, sums), hn::Set(f32, factors.scale[r] * kLog2E),
                            hn::Set(f32, factors.offset[r] * kLog2E)),
                 f32, scores + r * kSlotStride + t);
    };
    size_t t = 0;
    for (; t + 2 * kSketchLanes <= slots; t += 2 * kSketchLanes) {
      ByteProducts<kBits, kHeads, 2>(
          page.codes + t / kSketchLanes * group_bytes, n_lines, group_bytes, factors.rounded, dim,
          ahead, [&](size_t r, size_t lane, auto sums) HWY_ATTR { store(r, t + lane, sums); });
    }
    for (; t < slots; t += kSketchLanes) {
      ByteProducts<kBits, kHeads, 1>(
          page.codes + t / kSketchLanes * group_bytes, n_lines, group_bytes, factors.rounded, dim,
          ahead, [&](size_t r, size_t lane, auto sums) HWY_ATTR { store(r, t + lane, sums); });
    }
  } else {
    for (size_t t = 0; t < slots; t += kSketchLanes) {
      FloatProducts<kBits, kHeads>(page.codes + t / kSketchLanes * group_bytes, n_lines,
                                   factors.exact, dim, scores + t, kSlotStride);
    }
    for (size_t r = 0; r < kHeads; ++r) {
      float* row = scores + r * kSlotStride;
      for (size_t t = 0; t < slots; ++t) row[t] = (row[t] + factors.offset[r]) * kLog2E;
    }
  }
}

// The masses of one page from its scores and, where wanted, its tokens' weights, `weight_stride`
// from one head to the next.
template <size_t kHeads>
HWY_INLINE void SumPage(const float* scores, size_t slots, LinesAhead& ahead, float* page_max,
                        float* page_sum, uint8_t* weights, size_t weight_stride) {
  const F32 f32;
  VF32 max[kMaxHeadBlock];
  VF32 sum[kMaxHeadBlock];
  HWY_UNROLL(4)
  for (size_t r = 0; r < kMaxHeadBlock; ++r) {
    const float* row = scores + std::min(r, kHeads - 1) * kSlotStride;
    max[r] = hn::LoadU(f32, row);
    sum[r] = hn::Zero(f32);
    if (r >= kHeads) continue;
    for (size_t i = kLanes; i < slots; i += kLanes)
      max[r] = hn::Max(max[r], hn::LoadU(f32, row + i));
  }
  StoreReduced4(f32, max[0], max[1], max[2], max[3], MaxOp(), page_max);
  HWY_UNROLL(4)
  for (size_t r = 0; r < kHeads; ++r) {
    const VF32 reference = hn::Set(f32, page_max[r]);
    for (size_t i = 0; i < slots; i += kLanes) {
      ahead.Prefetch();
      const VF32 score = hn::LoadU(f32, scores + r * kSlotStride + i);
      const VF32 p = QuickExp2(f32, hn::Sub(score, reference));
      sum[r] = hn::Add(sum[r], p);
      if (weights != nullptr) {
        StoreRoundedToUnsigned(hn::Mul(p, hn::Set(f32, 255.0f)), weights + r * weight_stride + i);
      }
    }
    page_max[r] *= std::numbers::ln2_v<float>;
  }
  StoreSums4(f32, sum[0], sum[1], sum[2], sum[3], page_sum);
}

// One item alone is a long chain of dependent operations. So each turn takes one item through its
// first stage, the one before through its second, the one before that through its third; and
// prefetches, which stall the processor in bursts, are spread evenly.
template <int kBits, size_t kHeads, size_t kDim>
void ScanRun(const PageScanTask& task, Plane plane_kind, const SketchFormat& format,
             size_t first_query_head) {
  const PageMasses& masses = task.masses;
  const auto slots = static_cast<size_t>(task.kv->layout->slots);
  const auto stride = static_cast<size_t>(masses.stride);
  const auto group_floats = static_cast<size_t>(task.group_heads) * format.dim;
  const int64_t last_item = (masses.n_pages - task.begin_page) * task.n_heads - 1;
  Page pages[2];
  PageFactors factors[2];
  alignas(64) float scores[2][kHeads * kSlotStride];
  for (int64_t turn = 0; turn < task.size() + 2; ++turn) {
    // Also into the pages of the next task.
    LinesAhead ahead(
        PageScanItem(task, std::min(turn + kItemsAhead, last_item)).PlaneOf(task, plane_kind));
    if (const int64_t i = turn; i < task.size()) {
      const PageScanItem item(task, i);
      const std::byte* plane = item.PlaneOf(task, plane_kind);
      pages[i % 2] = {plane, plane + 2 * format.dim, plane + format.code_offset};
      const float* q = task.q + item.head * group_floats + first_query_head * format.dim;
      MakeFactors<kBits, kHeads, kDim>(pages[i % 2], q, format.dim, ahead, factors[i % 2]);
    }
    if (const int64_t i = turn - 1; 0 <= i && i < task.size()) {
      ScorePage<kBits, kHeads, kDim>(pages[i % 2], format.dim, slots, factors[i % 2], ahead,
                                     scores[i % 2]);
    }
    if (const int64_t i = turn - 2; 0 <= i) {
      const size_t at =
          first_query_head * stride + static_cast<size_t>(PageScanItem(task, i).MassIndex(task));
      float page_max[kMaxHeadBlock];
      float page_sum[kMaxHeadBlock];
      SumPage<kHeads>(scores[i % 2], slots, ahead, page_max, page_sum,
                      masses.weights == nullptr ? nullptr : masses.weights + at * slots,
                      stride * slots);
      for (size_t r = 0; r < kHeads; ++r) {
        masses.max[at + r * stride] = page_max[r];
        masses.sum[at + r * stride] = page_sum[r];
      }
    }
  }
}

// Loops over the channels are unrolled for the usual head dimensions.
template <int kBits, size_t kHeads>
void ScanHeads(const PageScanTask& task, Plane plane, const SketchFormat& format,
               size_t first_query_head) {
  switch (kHasByteProducts<kBits> ? format.dim : 0) {
    case 64:
      return ScanRun<kBits, kHeads, 64>(task, plane, format, first_query_head);
    case 128:
      return ScanRun<kBits, kHeads, 128>(task, plane, format, first_query_head);
    default:
      return ScanRun<kBits, kHeads, 0>(task, plane, format, first_query_head);
  }
}

template <int kBits>
void ScanBlocks(const PageScanTask& task, Plane plane, const SketchFormat& format) {
  ForEachHeadBlock(task.group_heads, [&](auto n_heads, size_t first) HWY_ATTR {
    ScanHeads<kBits, n_heads()>(task, plane, format, first);
  });
}

void ScanTask(const PageScanTask& task, Plane plane, const SketchFormat& format) {
  switch (format.bits) {
    case 2:
      return ScanBlocks<2>(task, plane, format);
    case 4:
      return ScanBlocks<4>(task, plane, format);
    default:
      return ScanBlocks<8>(task, plane, format);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(ScanTask);

void SketchScanCpu(const PageScanTask& task, Plane plane, const SketchFormat& format) {
  HWY_DYNAMIC_DISPATCH(ScanTask)(task, plane, format);
}

}  // namespace winnow
#endif  // HWY_ONCE
