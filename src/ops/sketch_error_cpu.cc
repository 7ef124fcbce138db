#include "ops/sketch_error_cpu.h"

#define WINNOW_BYTE_PRODUCTS
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sketch_error_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/byte_products-inl.h"
#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

constexpr float kUnit = 0x1p-24f;  // half an ulp of 1
// Outweighs the rounding of this file's own sums of at most kMaxSketchDim terms.
constexpr float kInflate = 1 + 0x1p-12f;
// Exponentials of relative error 3e-6, of arguments rounded three times (whose weighted mean is at
// most log kMaxSketchSlots), and a sum of at most kMaxSketchSlots of them: below 1.3e-5.
constexpr float kSumError = 2e-5f;

// What one page's sketch says of each channel, [dim] each.
struct PageRows {
  alignas(64) float step[kMaxSketchDim];
  alignas(64) float largest[kMaxSketchDim];  // |k|
  alignas(64) float spread[kMaxSketchDim];   // |minimum| + |step·code|, which the scan adds up
};

void LoadPage(const std::byte* plane, const SketchFormat& format, PageRows& rows) {
  const F32 f32;
  const StepReader steps(SketchFormat::GroupShift(format.dim));
  StepReader::Units units;
  StepReader::LoadUnits(plane, units);
  const VF32 max_code = hn::Set(f32, static_cast<float>((1 << format.bits) - 1));
  for (size_t i = 0; i < format.dim; i += kLanes) {
    const VF32 minimum = F16Row::Load(SketchFormat::Minima(plane), i);
    const VF32 step = steps.Load(format.Steps(plane), units, i);
    const VF32 width = hn::Mul(step, max_code);
    hn::Store(step, f32, rows.step + i);
    hn::Store(hn::Max(hn::Abs(minimum), hn::Abs(hn::Add(minimum, width))), f32, rows.largest + i);
    hn::Store(hn::Add(hn::Abs(minimum), width), f32, rows.spread + i);
  }
}

struct PageErrors {
  float log_mass;
  float magnitude;
};

// q [dim], scaled. `norm_error`: ‖q‖·‖k − k̂‖. `unit`: what the scan rounds its factors to; 0 if it
// does not.
PageErrors ErrorsOfHead(const PageRows& rows, const float* q, const SketchFormat& format,
                        float norm_error, float unit) {
  const F32 f32;
  VF32 steps = hn::Zero(f32);
  VF32 largest = hn::Zero(f32);
  VF32 spread = hn::Zero(f32);
  for (size_t i = 0; i < format.dim; i += kLanes) {
    const VF32 weight = hn::Abs(hn::LoadU(f32, q + i));
    steps = hn::MulAdd(weight, hn::Load(f32, rows.step + i), steps);
    largest = hn::MulAdd(weight, hn::Load(f32, rows.largest + i), largest);
    spread = hn::MulAdd(weight, hn::Load(f32, rows.spread + i), spread);
  }
  const auto dim = static_cast<float>(format.dim);
  const float of_spread = hn::GetLane(hn::SumOfLanes(f32, spread));
  float error = std::min(hn::GetLane(hn::SumOfLanes(f32, steps)) / 2, norm_error);
  // Of the rounding of factors, by 1/2 + 1/512 of a unit and what floats round, the part that meets
  // codes off their centre is neglected (sketch_scan_cpu.cc).
  error += 0.51f * unit * dim * static_cast<float>((1 << format.bits) - 1) / 2;
  // Products and sums of `dim` channels, of the offset, and factors of log2(e) and ln(2).
  error += (dim + 16) * kUnit * of_spread;
  // Minima of what is not a number may lose it; the sum keeps it.
  return {error * kInflate + kSumError + 0 * of_spread,
          hn::GetLane(hn::SumOfLanes(f32, largest)) * kInflate + 0 * of_spread};
}

float Norm(const float* q, size_t dim) {
  float squares = 0;
  for (size_t c = 0; c < dim; ++c) squares += q[c] * q[c];
  return std::sqrt(squares);
}

void ErrorTask(const PageScanTask& task, Plane plane_kind, const SketchFormat& format,
               const float* largest_q) {
  const bool in_bytes = format.bits == 2   ? kHasByteProducts<2>
                        : format.bits == 4 ? kHasByteProducts<4>
                                           : kHasByteProducts<8>;
  std::vector<float> norms(static_cast<size_t>(task.n_heads) * task.group_heads);
  for (size_t row = 0; row < norms.size(); ++row) {
    norms[row] = Norm(task.q + row * format.dim, format.dim);
  }
  PageRows rows;
  float units[kMaxHeadBlock] = {};
  for (int64_t i = 0; i < task.size(); ++i) {
    const PageScanItem item(task, i);
    const std::byte* plane = item.PlaneOf(task, plane_kind);
    LoadPage(plane, format, rows);
    const float sketch_error = SketchError(*task.kv->layout, plane, format.bits);
    for (int r = 0; r < task.group_heads; ++r) {
      const auto row = static_cast<size_t>(item.head) * task.group_heads + r;
      const int64_t at = item.MassIndex(task) + r * task.masses.stride;
      if (in_bytes) {
        StoreFactorUnits<1>(plane, largest_q + row * SketchFormat::kStepGroups, units);
      }
      const PageErrors errors = ErrorsOfHead(rows, task.q + row * format.dim, format,
                                             norms[row] * sketch_error, units[0]);
      task.masses.max[at] = errors.log_mass;
      task.masses.sum[at] = errors.magnitude;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(ErrorTask);

void SketchErrorsCpu(const PageScanTask& task, Plane plane, const SketchFormat& format,
                     const float* largest_q) {
  HWY_DYNAMIC_DISPATCH(ErrorTask)(task, plane, format, largest_q);
}

}  // namespace winnow
#endif  // HWY_ONCE
