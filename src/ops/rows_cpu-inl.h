// Shared by the CPU attention kernels: rows of the KV cache read as f32 vectors, sums of four
// vectors at once, and exp. Included once for each of Highway's targets.
#if defined(WINNOW_OPS_ROWS_CPU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_ROWS_CPU_INL_H_
#undef WINNOW_OPS_ROWS_CPU_INL_H_
#else
#define WINNOW_OPS_ROWS_CPU_INL_H_
#endif

#include <ggml.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using VF32 = hn::Vec<F32>;
inline constexpr size_t kLanes = hn::MaxLanes(F32());
inline constexpr size_t kVectorRegisters = (kLanes == 16 || HWY_ARCH_ARM_A64) ? 32 : 16;
// Values after which every dtype has an address of its own (a block of q8_0).
inline constexpr size_t kRowUnit = kQ8BlockValues;
static_assert(kRowUnit % kLanes == 0);

// Each reader has At(row, i), the address of value i (a multiple of kRowUnit), and Load(at, i), the
// vector of values i.. after that address (i a multiple of kLanes). Where i is a constant, the
// compiler reads what values share, the scale of a block, once. LoadTail reads only n < kLanes
// values and zeroes the rest.
struct F32Row {
  static const std::byte* At(const std::byte* row, size_t i) { return row + i * sizeof(float); }
  static HWY_INLINE VF32 Load(const std::byte* at, size_t i) {
    return hn::LoadU(F32(), reinterpret_cast<const float*>(at) + i);
  }
  static HWY_INLINE VF32 LoadTail(const std::byte* at, size_t i, size_t n) {
    float values[kLanes] = {};
    std::memcpy(values, At(at, i), n * sizeof(float));
    return hn::LoadU(F32(), values);
  }
};

struct F16Row {
  using F16 = hn::Rebind<hwy::float16_t, F32>;
  static const std::byte* At(const std::byte* row, size_t i) {
    return row + i * sizeof(hwy::float16_t);
  }
  static HWY_INLINE VF32 Load(const std::byte* at, size_t i) {
    const auto* values = reinterpret_cast<const hwy::float16_t*>(at) + i;
#if HWY_TARGET == HWY_SCALAR  // whose PromoteTo makes numbers of infinities and NaN
    return hn::Set(F32(), ggml_fp16_to_fp32(values->bits));
#else
    return hn::PromoteTo(F32(), hn::LoadU(F16(), values));
#endif
  }
  static HWY_INLINE VF32 LoadTail(const std::byte* at, size_t i, size_t n) {
    hwy::float16_t values[kLanes] = {};
    std::memcpy(values, At(at, i), n * sizeof(hwy::float16_t));
    return hn::PromoteTo(F32(), hn::LoadU(F16(), values));
  }
};

struct Q8Row {
  static const std::byte* At(const std::byte* row, size_t i) {
    return row + i / kQ8BlockValues * kQ8BlockBytes;
  }
  static HWY_INLINE VF32 Load(const std::byte* at, size_t i) {
    const hn::Rebind<hwy::float16_t, F32> df16;
    const hn::RebindToUnsigned<decltype(df16)> du16;
    const hn::Rebind<int32_t, F32> di32;
    const hn::Rebind<int8_t, F32> di8;
    const std::byte* block = At(at, i);
    uint16_t bits;
    std::memcpy(&bits, block, sizeof(bits));
    const VF32 scale = hn::PromoteTo(F32(), hn::BitCast(df16, hn::Set(du16, bits)));
    const auto* values = reinterpret_cast<const int8_t*>(block + sizeof(bits)) + i % kQ8BlockValues;
    return hn::Mul(hn::ConvertTo(F32(), hn::PromoteTo(di32, hn::LoadU(di8, values))), scale);
  }
  // Rows are whole blocks, so there is never a tail.
  static HWY_INLINE VF32 LoadTail(const std::byte* /*at*/, size_t /*i*/, size_t /*n*/) {
    return hn::Zero(F32());
  }
};

struct SumOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct MaxOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// Writes op over the lanes of a, b, c and d to results[0..3]. A template only so that branches for
// other vector lengths are not compiled.
template <class D, class Op>
HWY_INLINE void StoreReduced4([[maybe_unused]] D f32, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c,
                              hn::Vec<D> d, [[maybe_unused]] Op op, float* results) {
#if HWY_TARGET == HWY_SCALAR
  results[0] = hn::GetLane(a);
  results[1] = hn::GetLane(b);
  results[2] = hn::GetLane(c);
  results[3] = hn::GetLane(d);
#else
  // Within each 128-bit block: a transposing tree, 9 operations for four results.
  const hn::Repartition<uint64_t, D> u64;
  const auto ab = op(hn::InterleaveLower(f32, a, b), hn::InterleaveUpper(f32, a, b));
  const auto cd = op(hn::InterleaveLower(f32, c, d), hn::InterleaveUpper(f32, c, d));
  const auto ab64 = hn::BitCast(u64, ab);
  const auto cd64 = hn::BitCast(u64, cd);
  const auto abcd = op(hn::BitCast(f32, hn::InterleaveLower(u64, ab64, cd64)),
                       hn::BitCast(f32, hn::InterleaveUpper(u64, ab64, cd64)));
  // Then the blocks are folded onto each other.
  if constexpr (hn::MaxLanes(D()) == 16) {
    const hn::Half<D> half;
    const hn::Half<decltype(half)> quarter;
    const auto halves = op(hn::LowerHalf(half, abcd), hn::UpperHalf(half, abcd));
    hn::StoreU(op(hn::LowerHalf(quarter, halves), hn::UpperHalf(quarter, halves)), quarter,
               results);
  } else if constexpr (hn::MaxLanes(D()) == 8) {
    const hn::Half<D> half;
    hn::StoreU(op(hn::LowerHalf(half, abcd), hn::UpperHalf(half, abcd)), half, results);
  } else {
    hn::StoreU(abcd, f32, results);
  }
#endif
}

// The sums of the lanes of a, b, c and d.
template <class D>
HWY_INLINE void StoreSums4(D f32, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> d,
                           float* sums) {
  StoreReduced4(f32, a, b, c, d, SumOp(), sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
