#include "ops/sketch_values_cpu.h"

#define WINNOW_BYTE_PRODUCTS
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sketch_values_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/check.h"
#include "ops/byte_products-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

constexpr size_t kPagesAhead = 2;

struct ValuePage {
  const std::byte* minima;
  const std::byte* steps;
  const std::byte* codes;
  const uint8_t* weights;  // [kHeads], weight_stride apart
  size_t weight_stride;
  StepReader::Units step_units;
};

// products[r * kSketchLanes * kGroups + lane] = Σ_t weight[r][t]·code[t][lane], as float.
template <int kBits, size_t kHeads, size_t kGroups>
HWY_INLINE void WeighCodes(const ValuePage& page, size_t group, size_t slots, LinesAhead& ahead,
                           float* products) {
  constexpr size_t kStride = kSketchLanes * kGroups;
  const size_t n_lines = slots * kBits / 32;
  const std::byte* codes = page.codes + group * n_lines * 64;
  if constexpr (kHasByteProducts<kBits>) {
    ByteProducts<kBits, kHeads, kGroups>(
        codes, n_lines, n_lines * 64, page.weights, page.weight_stride, ahead,
        [&](size_t r, size_t lane, auto sums) HWY_ATTR {
          const hn::Rebind<float, hn::DFromV<decltype(sums)>> f32;
          hn::StoreU(hn::ConvertTo(f32, sums), f32, products + r * kStride + lane);
        });
  } else {
    float weights[kHeads * kMaxSketchSlots];
    for (size_t r = 0; r < kHeads; ++r) {
      for (size_t t = 0; t < slots; ++t) {
        weights[r * kMaxSketchSlots + t] = page.weights[r * page.weight_stride + t];
      }
    }
    for (size_t g = 0; g < kGroups; ++g) {
      FloatProducts<kBits, kHeads>(codes + g * n_lines * 64, n_lines, weights, kMaxSketchSlots,
                                   products + g * kSketchLanes, kStride);
    }
  }
}

// sums[r][i..] += unit[r]·step·products + mass[r]·minimum for kGroups · 16 channels.
template <int kBits, size_t kHeads, size_t kGroups>
HWY_INLINE void AddChannels(const StepReader& steps, const ValuePage& page, size_t group,
                            size_t slots, const float* mass, const float* unit, LinesAhead& ahead,
                            float* sums, size_t dim) {
  const F32 f32;
  constexpr size_t kStride = kSketchLanes * kGroups;
  alignas(64) float products[kHeads * kStride];
  WeighCodes<kBits, kHeads, kGroups>(page, group, slots, ahead, products);
  for (size_t i = 0; i < kStride; i += kLanes) {
    const size_t channel = group * kSketchLanes + i;
    if (i % kSketchLanes == 0) {  // a line of minima or steps, and what is left of the codes'
      for (int n = 0; n < 3; ++n) ahead.Prefetch();
    }
    const VF32 minimum = F16Row::Load(page.minima, channel);
    const VF32 step = steps.Load(page.steps, page.step_units, channel);
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) {
      float* to = sums + r * dim + channel;
      const VF32 product = hn::Mul(hn::LoadU(f32, products + r * kStride + i), step);
      VF32 sum = hn::LoadU(f32, to);
      sum = hn::MulAdd(product, hn::Set(f32, unit[r]), sum);
      hn::StoreU(hn::MulAdd(minimum, hn::Set(f32, mass[r]), sum), f32, to);
    }
  }
}

// n a multiple of 16.
HWY_INLINE float SumOfBytes(const uint8_t* bytes, size_t n) {
#if HWY_TARGET == HWY_SCALAR
  uint32_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += bytes[i];
  return static_cast<float>(sum);
#else
  const hn::FixedTag<uint8_t, 16> u8;
  const hn::FixedTag<uint64_t, 2> u64;
  auto sum = hn::Zero(u64);
  for (size_t i = 0; i < n; i += 16) sum = hn::Add(sum, hn::SumsOf8(hn::LoadU(u8, bytes + i)));
  return static_cast<float>(hn::GetLane(hn::SumOfLanes(u64, sum)));
#endif
}

template <int kBits, size_t kHeads>
void AddHeads(const SketchValuesTask& task, size_t first_head) {
  const PagedKv& kv = *task.kv;
  const SketchFormat& format = *task.format;
  const auto slots = static_cast<size_t>(kv.layout->slots);
  const auto stride = static_cast<size_t>(task.stride);
  const size_t n_groups = format.dim / kSketchLanes;
  float* sums = task.sums + first_head * format.dim;
  std::fill_n(sums, kHeads * format.dim, 0.0f);
  float totals[kHeads] = {};
  const StepReader steps(SketchFormat::GroupShift(format.dim));
  ValuePage page;
  for (size_t i = 0; i < task.pages.size(); ++i) {
    const auto p = static_cast<size_t>(task.pages[i]);
    const std::byte* plane = kv.PlaneOf(task.plane, task.pages[i], task.head);
    const size_t later = std::min(i + kPagesAhead, task.pages.size() - 1);
    LinesAhead ahead(kv.PlaneOf(task.plane, task.pages[later], task.head));
    page.minima = SketchFormat::Minima(plane);
    page.steps = format.Steps(plane);
    page.codes = format.Codes(plane);
    page.weights = task.weights + (first_head * stride + p) * slots;
    page.weight_stride = stride * slots;
    StepReader::LoadUnits(plane, page.step_units);
    float mass[kHeads];
    float unit[kHeads];
    for (size_t r = 0; r < kHeads; ++r) {
      mass[r] = task.shares[(first_head + r) * stride + p];
      unit[r] = mass[r] / SumOfBytes(page.weights + r * page.weight_stride, slots);
      totals[r] += mass[r];
    }
    size_t group = 0;
    for (; group + 2 <= n_groups; group += 2) {
      AddChannels<kBits, kHeads, 2>(steps, page, group, slots, mass, unit, ahead, sums, format.dim);
    }
    for (; group < n_groups; ++group) {
      AddChannels<kBits, kHeads, 1>(steps, page, group, slots, mass, unit, ahead, sums, format.dim);
    }
  }
  std::copy_n(totals, kHeads, task.totals + first_head);
}

template <int kBits>
void AddBlocks(const SketchValuesTask& task) {
  ForEachHeadBlock(task.group_heads, [&](auto n_heads, size_t first)
                                         HWY_ATTR { AddHeads<kBits, n_heads()>(task, first); });
}

void ValuesTask(const SketchValuesTask& task) {
  if (task.format->bits == 2) {
    AddBlocks<2>(task);
  } else {
    AddBlocks<4>(task);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(ValuesTask);

void SketchValuesCpu(const SketchValuesTask& task) { HWY_DYNAMIC_DISPATCH(ValuesTask)(task); }

}  // namespace winnow
#endif  // HWY_ONCE
