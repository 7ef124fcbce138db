#include "ops/token_rows_cpu.h"

#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/token_rows_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "ops/rows_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// A row's vector of values i.., of which the last may be short; the rest is zero.
template <class Row>
HWY_INLINE VF32 LoadValues(const std::byte* x, size_t i, size_t dim) {
  const size_t unit = i / kRowUnit * kRowUnit;
  const std::byte* at = Row::At(x, unit);
  return i + kLanes <= dim ? Row::Load(at, i - unit) : Row::LoadTail(at, i - unit, dim - i);
}

HWY_INLINE VF32 LoadFloats(const float* x, size_t i, size_t dim) {
  return LoadValues<F32Row>(reinterpret_cast<const std::byte*>(x), i, dim);
}

HWY_INLINE void StoreFloats(VF32 values, float* out, size_t i, size_t dim) {
  if (i + kLanes <= dim) return hn::StoreU(values, F32(), out + i);
  float tail[kLanes];
  hn::StoreU(values, F32(), tail);
  std::copy_n(tail, dim - i, out + i);
}

// A row is converted once a query head: one instruction a vector, less than keeping it costs.
template <class Row>
void DotsOfRow(const std::byte* x, const float* q, size_t dim, int n, float* dots, int64_t stride) {
  const F32 f32;
  for (int r = 0; r < n; ++r, q += dim) {
    VF32 sum = hn::Zero(f32);
    for (size_t i = 0; i < dim; i += kLanes) {
      sum = hn::MulAdd(LoadFloats(q, i, dim), LoadValues<Row>(x, i, dim), sum);
    }
    dots[r * stride] = hn::GetLane(hn::SumOfLanes(f32, sum));
  }
}

template <class Row>
void AddRow(const std::byte* x, const float* weights, int64_t stride, size_t dim, int n,
            float* out) {
  const F32 f32;
  for (int r = 0; r < n; ++r, out += dim) {
    const float weight = weights[r * stride];
    if (weight == 0) continue;
    for (size_t i = 0; i < dim; i += kLanes) {
      const VF32 sum =
          hn::MulAdd(hn::Set(f32, weight), LoadValues<Row>(x, i, dim), LoadFloats(out, i, dim));
      StoreFloats(sum, out, i, dim);
    }
  }
}

void RowDots(DType dtype, const std::byte* x, const float* q, int64_t dim, int n, float* dots,
             int64_t stride) {
  const auto size = static_cast<size_t>(dim);
  switch (dtype) {
    case DType::kF32:
      return DotsOfRow<F32Row>(x, q, size, n, dots, stride);
    case DType::kF16:
      return DotsOfRow<F16Row>(x, q, size, n, dots, stride);
    case DType::kQ8_0:
      return DotsOfRow<Q8Row>(x, q, size, n, dots, stride);
  }
}

void AddRowOf(DType dtype, const std::byte* x, const float* weights, int64_t stride, int64_t dim,
              int n, float* out) {
  const auto size = static_cast<size_t>(dim);
  switch (dtype) {
    case DType::kF32:
      return AddRow<F32Row>(x, weights, stride, size, n, out);
    case DType::kF16:
      return AddRow<F16Row>(x, weights, stride, size, n, out);
    case DType::kQ8_0:
      return AddRow<Q8Row>(x, weights, stride, size, n, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(RowDots);
HWY_EXPORT(AddRowOf);

void RowDotsCpu(DType dtype, const std::byte* x, const float* q, int64_t dim, int n, float* dots,
                int64_t stride) {
  HWY_DYNAMIC_DISPATCH(RowDots)(dtype, x, q, dim, n, dots, stride);
}

void AddRowCpu(DType dtype, const std::byte* x, const float* weights, int64_t stride, int64_t dim,
               int n, float* out) {
  HWY_DYNAMIC_DISPATCH(AddRowOf)(dtype, x, weights, stride, dim, n, out);
}

}  // namespace winnow
#endif  // HWY_ONCE
