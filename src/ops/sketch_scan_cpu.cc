#include "ops/sketch_scan_cpu.h"

#define WINNOW_BYTE_PRODUCTS
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sketch_scan_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "ops/byte_products-inl.h"
#include "ops/fast_exp-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Items from the one that enters the first stage to the one that is prefetched.
constexpr int64_t kItemsAhead = 4;
constexpr float kLog2E = std::numbers::log2e_v<float>;

// One KV head of one page under kHeads query heads, between the stages of its scan. Products with
// the codes need factors q_c·step_c: score = offset + unit·Σ factor·code. kDim and kSlots are 0
// where they are not known to the compiler.
template <int kBits, size_t kHeads, size_t kDim, size_t kSlots>
struct ScanItem {
  static constexpr size_t kMaxDim = kDim == 0 ? kMaxSketchDim : kDim;
  static constexpr size_t kSlotStride = kSlots == 0 ? kMaxSketchSlots : kSlots;
  using Factor = std::conditional_t<kHasByteProducts<kBits>, int8_t, float>;

  const std::byte* plane;
  const float* q;  // [kHeads, dim]
  StepReader::Units step_units;
  alignas(64) Factor factors[kHeads * kMaxDim];
  alignas(64) float scores[kHeads * kSlotStride];  // times log2(e)
  float unit[kMaxHeadBlock];
  float offset[kMaxHeadBlock];
  float max[kMaxHeadBlock];  // of the scores
};

template <int kBits, size_t kHeads, size_t kDim, size_t kSlots>
class Scan {
 public:
  using Item = ScanItem<kBits, kHeads, kDim, kSlots>;

  HWY_INLINE Scan(const SketchFormat& format, size_t slots)
      : format_(format),
        any_slots_(slots),
        steps_(SketchFormat::GroupShift(kDim == 0 ? format.dim : kDim)) {}

  HWY_INLINE void MakeUnits(const float* largest_q, Item& item) const {
    StepReader::LoadUnits(item.plane, item.step_units);
    if constexpr (kHasByteProducts<kBits>) {
      StoreFactorUnits<kHeads>(item.plane, largest_q, item.unit);
    }
  }

  // The factors, where the codes are multiplied so, in integers f̂ of a unit each head. Then their
  // rounding errors e = f − f̂ meet the codes less their centre: Σ f·code = Σ f̂·code + Σ e·centre +
  // Σ e·(code − centre), of which the last is neglected.
  HWY_INLINE void MakeFactors(LinesAhead& ahead, Item& item) const {
    constexpr bool kRounded = kHasByteProducts<kBits>;
    constexpr float kCentre = kRounded ? ((1 << kBits) - 1) / 2.0f : 0.0f;
    const F32 f32;
    VF32 offset[kMaxHeadBlock];
    FactorRounder rounder[kHeads];
    HWY_UNROLL(4)
    for (size_t r = 0; r < kMaxHeadBlock; ++r) {
      offset[r] = hn::Zero(f32);
      if (kRounded && r < kHeads) rounder[r].Set(item.unit[r]);
    }
    const auto add_block = [&](auto n_vectors, size_t i) HWY_ATTR {
      constexpr size_t kVectors = n_vectors();
      VF32 step[kVectors];
      VF32 middle[kVectors];
      HWY_UNROLL(4)
      for (size_t j = 0; j < kVectors; ++j) {
        const size_t at = i + j * kLanes;
        step[j] = steps_.Load(format_.Steps(item.plane), item.step_units, at);
        middle[j] = hn::MulAdd(step[j], hn::Set(f32, kCentre),
                               F16Row::Load(SketchFormat::Minima(item.plane), at));
      }
      HWY_UNROLL(4)
      for (size_t r = 0; r < kHeads; ++r) {
        VF32 query[kVectors];
        auto* factors = item.factors + r * dim() + i;
        HWY_UNROLL(4)
        for (size_t j = 0; j < kVectors; ++j) {
          if (kRounded && j % 2 == 0) ahead.Prefetch();
          query[j] = hn::LoadU(f32, item.q + r * dim() + i + j * kLanes);
          offset[r] = hn::MulAdd(query[j], middle[j], offset[r]);
          if constexpr (!kRounded)
            hn::StoreU(hn::Mul(query[j], step[j]), f32, factors + j * kLanes);
        }
        if constexpr (kRounded && kVectors == 4) {
          StoreFourRounded(query, step, rounder[r], factors);
        } else if constexpr (kRounded) {
          StoreRounded(query[0], step[0], rounder[r], factors);
        }
      }
    };
    size_t i = 0;
    for (; i + 4 * kLanes <= dim(); i += 4 * kLanes) {
      add_block(std::integral_constant<size_t, 4>(), i);
    }
    for (; i < dim(); i += kLanes) add_block(std::integral_constant<size_t, 1>(), i);
    if constexpr (kRounded) {
      HWY_UNROLL(4)
      for (size_t r = 0; r < kHeads; ++r) {
        offset[r] =
            hn::NegMulAdd(rounder[r].Sum(), hn::Set(f32, kCentre * item.unit[r]), offset[r]);
      }
    }
    StoreSums4(f32, offset[0], offset[1], offset[2], offset[3], item.offset);
  }

  HWY_INLINE void MakeScores(LinesAhead& ahead, Item& item) const {
    const size_t n_lines = dim() * kBits / 32;
    const size_t group_bytes = n_lines * 64;
    const std::byte* codes = format_.Codes(item.plane);
    if constexpr (kHasByteProducts<kBits>) {
      const auto run = [&](auto n_groups, size_t t) HWY_ATTR {
        const auto store = [&](size_t r, size_t lane, auto sums) HWY_ATTR {
          const hn::Rebind<float, hn::DFromV<decltype(sums)>> f32;
          hn::StoreU(hn::MulAdd(hn::ConvertTo(f32, sums), hn::Set(f32, item.unit[r] * kLog2E),
                                hn::Set(f32, item.offset[r] * kLog2E)),
                     f32, item.scores + r * Item::kSlotStride + t + lane);
        };
        ByteProducts<kBits, kHeads, n_groups()>(codes + t / kSketchLanes * group_bytes, n_lines,
                                                group_bytes, item.factors, dim(), ahead, store);
      };
      size_t t = 0;
      for (; t + 2 * kSketchLanes <= slots(); t += 2 * kSketchLanes) {
        run(std::integral_constant<size_t, 2>(), t);
      }
      for (; t < slots(); t += kSketchLanes) run(std::integral_constant<size_t, 1>(), t);
    } else {
      for (size_t t = 0; t < slots(); t += kSketchLanes) {
        FloatProducts<kBits, kHeads>(codes + t / kSketchLanes * group_bytes, n_lines, item.factors,
                                     dim(), item.scores + t, Item::kSlotStride);
      }
      for (size_t r = 0; r < kHeads; ++r) {
        float* row = item.scores + r * Item::kSlotStride;
        for (size_t t = 0; t < slots(); ++t) row[t] = (row[t] + item.offset[r]) * kLog2E;
      }
    }
    const F32 f32;
    VF32 max[kMaxHeadBlock];
    HWY_UNROLL(4)
    for (size_t r = 0; r < kMaxHeadBlock; ++r) {
      const float* row = item.scores + std::min(r, kHeads - 1) * Item::kSlotStride;
      max[r] = hn::LoadU(f32, row);
      if (r >= kHeads) continue;
      for (size_t i = kLanes; i < slots(); i += kLanes) {
        max[r] = hn::Max(max[r], hn::LoadU(f32, row + i));
      }
    }
    StoreReduced4(f32, max[0], max[1], max[2], max[3], MaxOp(), item.max);
  }

  // The masses of the page and, where wanted, its tokens' weights, `weight_stride` from one head to
  // the next.
  HWY_INLINE void SumMasses(LinesAhead& ahead, const Item& item, float* sums, uint8_t* weights,
                            size_t weight_stride) const {
    const F32 f32;
    VF32 sum[kMaxHeadBlock];
    HWY_UNROLL(4)
    for (size_t r = 0; r < kMaxHeadBlock; ++r) {
      sum[r] = hn::Zero(f32);
      if (r >= kHeads) continue;
      const VF32 reference = hn::Set(f32, item.max[r]);
      for (size_t i = 0; i < slots(); i += kLanes) {
        ahead.Prefetch();
        const VF32 score = hn::LoadU(f32, item.scores + r * Item::kSlotStride + i);
        const VF32 p = QuickExp2(f32, hn::Sub(score, reference));
        sum[r] = hn::Add(sum[r], p);
        if (weights != nullptr) {
          StoreRoundedToUnsigned(hn::Mul(p, hn::Set(f32, 255.0f)), weights + r * weight_stride + i);
        }
      }
    }
    StoreSums4(f32, sum[0], sum[1], sum[2], sum[3], sums);
  }

 private:
  HWY_INLINE size_t dim() const { return kDim == 0 ? format_.dim : kDim; }
  HWY_INLINE size_t slots() const { return kSlots == 0 ? any_slots_ : kSlots; }

  SketchFormat format_;
  size_t any_slots_;
  StepReader steps_;
};

// One item alone is a long chain of dependent operations, and four of its sums over lanes are what
// the next needs. So each turn takes one item through its first stage, the one before through its
// second and so on; and prefetches, which stall the processor in bursts, are spread evenly.
template <int kBits, size_t kHeads, size_t kDim, size_t kSlots>
void ScanRun(const PageScanTask& task, Plane plane, const SketchFormat& format,
             const float* largest_q, size_t first_query_head) {
  constexpr int kStages = 4;
  const PageMasses& masses = task.masses;
  const auto slots = static_cast<size_t>(task.kv->layout->slots);
  const auto stride = static_cast<size_t>(masses.stride);
  const int64_t last_item = (masses.n_pages - task.begin_page) * task.n_heads - 1;
  const Scan<kBits, kHeads, kDim, kSlots> scan(format, slots);
  ScanItem<kBits, kHeads, kDim, kSlots> items[kStages];
  for (int64_t turn = 0; turn < task.size() + kStages - 1; ++turn) {
    // Also into the pages of the next task.
    LinesAhead ahead(
        PageScanItem(task, std::min(turn + kItemsAhead, last_item)).PlaneOf(task, plane));
    const auto in_stage = [&](int64_t stage) {
      return 0 <= turn - stage && turn - stage < task.size();
    };
    const auto item_in = [&](int64_t stage) -> auto& { return items[(turn - stage) % kStages]; };
    if (in_stage(0)) {
      const PageScanItem at(task, turn);
      const size_t head = static_cast<size_t>(at.head) * task.group_heads + first_query_head;
      item_in(0).plane = at.PlaneOf(task, plane);
      item_in(0).q = task.q + head * format.dim;
      scan.MakeUnits(largest_q + head * SketchFormat::kStepGroups, item_in(0));
    }
    if (in_stage(1)) scan.MakeFactors(ahead, item_in(1));
    if (in_stage(2)) scan.MakeScores(ahead, item_in(2));
    if (in_stage(3)) {
      const size_t at = first_query_head * stride +
                        static_cast<size_t>(PageScanItem(task, turn - 3).MassIndex(task));
      float sums[kMaxHeadBlock];
      scan.SumMasses(ahead, item_in(3), sums,
                     masses.weights == nullptr ? nullptr : masses.weights + at * slots,
                     stride * slots);
      for (size_t r = 0; r < kHeads; ++r) {
        masses.max[at + r * stride] = item_in(3).max[r] * std::numbers::ln2_v<float>;
        masses.sum[at + r * stride] = sums[r];
      }
    }
  }
}

// Loops over channels and tokens are unrolled for the usual shapes.
template <int kBits, size_t kHeads>
void ScanHeads(const PageScanTask& task, Plane plane, const SketchFormat& format,
               const float* largest_q, size_t first_query_head) {
  if constexpr (kHasByteProducts<kBits>) {
    if (task.kv->layout->slots == kDefaultPageSlots) {
      if (format.dim == 64) {
        return ScanRun<kBits, kHeads, 64, kDefaultPageSlots>(task, plane, format, largest_q,
                                                             first_query_head);
      }
      if (format.dim == 128) {
        return ScanRun<kBits, kHeads, 128, kDefaultPageSlots>(task, plane, format, largest_q,
                                                              first_query_head);
      }
    }
  }
  ScanRun<kBits, kHeads, 0, 0>(task, plane, format, largest_q, first_query_head);
}

template <int kBits>
void ScanBlocks(const PageScanTask& task, Plane plane, const SketchFormat& format,
                const float* largest_q) {
  ForEachHeadBlock(task.group_heads, [&](auto n_heads, size_t first) HWY_ATTR {
    ScanHeads<kBits, n_heads()>(task, plane, format, largest_q, first);
  });
}

void ScanTask(const PageScanTask& task, Plane plane, const SketchFormat& format,
              const float* largest_q) {
  switch (format.bits) {
    case 2:
      return ScanBlocks<2>(task, plane, format, largest_q);
    case 4:
      return ScanBlocks<4>(task, plane, format, largest_q);
    default:
      return ScanBlocks<8>(task, plane, format, largest_q);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(ScanTask);

void SketchScanCpu(const PageScanTask& task, Plane plane, const SketchFormat& format,
                   const float* largest_q) {
  HWY_DYNAMIC_DISPATCH(ScanTask)(task, plane, format, largest_q);
}

}  // namespace winnow
#endif  // HWY_ONCE
