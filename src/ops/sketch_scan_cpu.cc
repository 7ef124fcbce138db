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

#include "core/check.h"
#include "ops/byte_products-inl.h"
#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Query heads that are processed together.
constexpr size_t kMaxScanHeads = 4;
constexpr size_t kMaxScanDim = 512;
constexpr size_t kSlotStride = kMaxSketchSlots;

// What the products with the codes of one page need, for kHeads query heads:
// score = offset + scale·Σ factor·code.
template <size_t kHeads>
struct PageFactors {
  alignas(64) float exact[kHeads][kMaxScanDim];     // q_c·step_c
  alignas(64) int8_t rounded[kHeads][kMaxScanDim];  // the same over `scale`
  float scale[kHeads];
  float offset[kHeads];
};

struct Page {
  const std::byte* minimum;
  const std::byte* step;
  const std::byte* codes;
};

// q_c·step_c, and Σ q_c·minimum_c as the offset; returns the largest |q_c·step_c| in `largest`.
template <size_t kHeads>
HWY_INLINE void MultiplySteps(const Page& page, const float* q, size_t dim,
                              PageFactors<kHeads>& factors, float* largest) {
  const F32 f32;
  VF32 offset[kHeads];
  VF32 max[kHeads];
  HWY_UNROLL(4)
  for (size_t r = 0; r < kHeads; ++r) offset[r] = max[r] = hn::Zero(f32);
  for (size_t i = 0; i < dim; i += kLanes) {
    const VF32 minimum = F16Row::Load(page.minimum, i);
    const VF32 step = F16Row::Load(page.step, i);
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) {
      const VF32 query = hn::LoadU(f32, q + r * dim + i);
      const VF32 product = hn::Mul(query, step);
      hn::StoreU(product, f32, factors.exact[r] + i);
      offset[r] = hn::MulAdd(query, minimum, offset[r]);
      max[r] = hn::Max(max[r], hn::Abs(product));
    }
  }
  HWY_UNROLL(4)
  for (size_t r = 0; r < kHeads; ++r) {
    factors.offset[r] = hn::GetLane(hn::SumOfLanes(f32, offset[r]));
    factors.scale[r] = 1.0f;
    largest[r] = hn::GetLane(hn::MaxOfLanes(f32, max[r]));
  }
}

// Rounds the factors to bytes. The rounding errors e_c meet the codes less their centre:
// Σ f·code = Σ (f − e)·code + Σ e·centre + Σ e·(code − centre), of which the last is neglected.
template <int kBits, size_t kHeads>
HWY_INLINE void RoundFactors(size_t dim, const float* largest, PageFactors<kHeads>& factors) {
  constexpr float kCentre = ((1 << kBits) - 1) / 2.0f;
  const F32 f32;
  const hn::Rebind<int8_t, F32> i8;
  for (size_t r = 0; r < kHeads; ++r) {
    const float scale = largest[r] / 127.0f;
    const VF32 inverse = hn::Set(f32, largest[r] > 0 ? 127.0f / largest[r] : 0.0f);
    const VF32 scale_lanes = hn::Set(f32, scale);
    VF32 error = hn::Zero(f32);
    for (size_t i = 0; i < dim; i += kLanes) {
      const VF32 exact = hn::LoadU(f32, factors.exact[r] + i);
      const auto rounded = hn::NearestInt(hn::Mul(exact, inverse));
      hn::StoreU(hn::DemoteTo(i8, rounded), i8, factors.rounded[r] + i);
      error = hn::Add(error, hn::NegMulAdd(hn::ConvertTo(f32, rounded), scale_lanes, exact));
    }
    factors.scale[r] = scale;
    factors.offset[r] += kCentre * hn::GetLane(hn::SumOfLanes(f32, error));
  }
}

// scores[r * kSlotStride + t] of the tokens of one page.
template <int kBits, size_t kHeads>
HWY_INLINE void ScorePage(const Page& page, const float* q, size_t dim, size_t slots,
                          PageFactors<kHeads>& factors, float* scores) {
  float largest[kHeads];
  MultiplySteps<kHeads>(page, q, dim, factors, largest);
  const size_t n_lines = dim * kBits / 32;
  const size_t group_bytes = n_lines * 64;
  if constexpr (kHasByteProducts<kBits>) {
    RoundFactors<kBits, kHeads>(dim, largest, factors);
    alignas(64) int32_t sums[kHeads * kSlotStride];
    size_t t = 0;
    for (; t + 2 * kSketchLanes <= slots; t += 2 * kSketchLanes) {
      ByteProducts<kBits, kHeads, 2>(page.codes + t / kSketchLanes * group_bytes, n_lines,
                                     group_bytes, factors.rounded[0], kMaxScanDim, sums + t,
                                     kSlotStride);
    }
    for (; t < slots; t += kSketchLanes) {
      ByteProducts<kBits, kHeads, 1>(page.codes + t / kSketchLanes * group_bytes, n_lines,
                                     group_bytes, factors.rounded[0], kMaxScanDim, sums + t,
                                     kSlotStride);
    }
    const F32 f32;
    const hn::RebindToSigned<F32> i32;
    for (size_t r = 0; r < kHeads; ++r) {
      const VF32 scale = hn::Set(f32, factors.scale[r]);
      const VF32 offset = hn::Set(f32, factors.offset[r]);
      for (size_t i = 0; i < slots; i += kLanes) {
        const auto sum = hn::LoadU(i32, sums + r * kSlotStride + i);
        hn::StoreU(hn::MulAdd(hn::ConvertTo(f32, sum), scale, offset), f32,
                   scores + r * kSlotStride + i);
      }
    }
  } else {
    for (size_t t = 0; t < slots; t += kSketchLanes) {
      FloatProducts<kBits, kHeads>(page.codes + t / kSketchLanes * group_bytes, n_lines,
                                   factors.exact[0], kMaxScanDim, scores + t, kSlotStride);
    }
    for (size_t r = 0; r < kHeads; ++r) {
      float* row = scores + r * kSlotStride;
      for (size_t t = 0; t < slots; ++t) row[t] += factors.offset[r];
    }
  }
}

// The mass of one page and, where wanted, its tokens' weights.
HWY_INLINE void SumPage(const float* scores, size_t slots, float* page_max, float* page_sum,
                        uint8_t* weights) {
  const F32 f32;
  const hn::Rebind<uint8_t, F32> u8;
  VF32 max = hn::LoadU(f32, scores);
  for (size_t i = kLanes; i < slots; i += kLanes) max = hn::Max(max, hn::LoadU(f32, scores + i));
  max = hn::MaxOfLanes(f32, max);
  const VF32 log2_e = hn::Set(f32, std::numbers::log2e_v<float>);
  VF32 sum = hn::Zero(f32);
  for (size_t i = 0; i < slots; i += kLanes) {
    const VF32 p = FastExp2(f32, hn::Mul(hn::Sub(hn::LoadU(f32, scores + i), max), log2_e));
    sum = hn::Add(sum, p);
    if (weights != nullptr) {
      hn::StoreU(hn::DemoteTo(u8, hn::NearestInt(hn::Mul(p, hn::Set(f32, 127.0f)))), u8,
                 weights + i);
    }
  }
  *page_max = hn::GetLane(max);
  *page_sum = hn::GetLane(hn::SumOfLanes(f32, sum));
}

template <int kBits, size_t kHeads>
void ScanHeads(const PageScanTask& task, Plane plane_kind, const SketchFormat& format,
               size_t first_head) {
  const PagedKv& kv = *task.kv;
  const PageMasses& masses = task.masses;
  const auto slots = static_cast<size_t>(kv.layout->slots);
  const auto stride = static_cast<size_t>(masses.stride);
  PageFactors<kHeads> factors;
  alignas(64) float scores[kHeads * kSlotStride];
  for (int64_t p = task.begin_page; p < task.end_page; ++p) {
    const std::byte* plane = kv.PlaneOf(plane_kind, p, task.head);
    if (p + 1 < task.end_page) {
      // The hardware follows one page's bytes; the jump to the next is told to it ahead.
      const std::byte* next = kv.PlaneOf(plane_kind, p + 1, task.head);
      for (size_t b = 0; b < format.scan_bytes(); b += 64) __builtin_prefetch(next + b, 0, 2);
    }
    const Page page{plane, plane + 2 * format.dim, plane + format.code_offset};
    ScorePage<kBits, kHeads>(page, task.q + first_head * format.dim, format.dim, slots, factors,
                             scores);
    for (size_t r = 0; r < kHeads; ++r) {
      const size_t at = (first_head + r) * stride + static_cast<size_t>(p);
      SumPage(scores + r * kSlotStride, slots, masses.max + at, masses.sum + at,
              masses.weights == nullptr ? nullptr : masses.weights + at * slots);
    }
  }
}

template <int kBits>
void ScanBlocks(const PageScanTask& task, Plane plane, const SketchFormat& format) {
  const auto n_heads = static_cast<size_t>(task.group_heads);
  for (size_t first = 0; first < n_heads; first += kMaxScanHeads) {
    switch (std::min(n_heads - first, kMaxScanHeads)) {
      case 1:
        ScanHeads<kBits, 1>(task, plane, format, first);
        break;
      case 2:
        ScanHeads<kBits, 2>(task, plane, format, first);
        break;
      case 3:
        ScanHeads<kBits, 3>(task, plane, format, first);
        break;
      default:
        ScanHeads<kBits, 4>(task, plane, format, first);
    }
  }
}

void ScanTask(const PageScanTask& task, Plane plane, const SketchFormat& format) {
  WINNOW_CHECK(format.dim <= kMaxScanDim, "heads of {} dimensions", format.dim);
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
