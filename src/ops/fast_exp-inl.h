// 2^x of Highway vectors for softmax weights: arguments at or below zero.
//
// Per-target include guard: foreach_target.h compiles this file once for each instruction set.
#if defined(WINNOW_OPS_FAST_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_FAST_EXP_INL_H_
#undef WINNOW_OPS_FAST_EXP_INL_H_
#else
#define WINNOW_OPS_FAST_EXP_INL_H_
#endif

#include <hwy/highway.h>

#if HWY_ARCH_X86
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Adding 1.5·2^23 leaves the nearest integer in the low mantissa bits; with the exponent bias added
// as well, those bits shifted left by 23 are the float 2^n.
inline constexpr float kExpRounder = 12582912.0f + 127.0f;

// 2^x for x in [-126, 1], relative error below 2^-23; exactly 1 at 0, 0 below -126 and at -inf, NaN
// at NaN. The polynomial is 1 + f·q(f), minimax in relative error on [-1/2, 1/2] (Remez: 2.6e-9). A
// degree less costs 3.6 ulp, since the constant term must stay 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V FastExp2(D df, V x) {
  const hn::RebindToUnsigned<D> du;
  const V rounder = hn::Set(df, kExpRounder);
  const V rounded = hn::Add(x, rounder);
  const V f = hn::Sub(x, hn::Sub(rounded, rounder));
  V p = hn::MulAdd(f, hn::Set(df, 1.55946778e-4f), hn::Set(df, 1.34066434e-3f));
  p = hn::MulAdd(f, p, hn::Set(df, 9.61769279e-3f));
  p = hn::MulAdd(f, p, hn::Set(df, 5.55031039e-2f));
  p = hn::MulAdd(f, p, hn::Set(df, 2.40226522e-1f));
  p = hn::MulAdd(f, p, hn::Set(df, 6.93147242e-1f));
  p = hn::MulAdd(f, p, hn::Set(df, 1.0f));
  const V power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, rounded)));
  // Multiplying, rather than adding to the exponent, keeps every NaN a NaN.
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -126.0f)), hn::Mul(p, power));
}

// 2^x for x <= 0 with relative error below 3e-6 (where the processor scales by powers of two, which
// also takes care of underflow; FastExp2 elsewhere): for weights that are estimates anyway.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V QuickExp2(D df, V x) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) {
    constexpr int kFractionAboveFloor = 1;
    const V f{_mm512_reduce_ps(x.raw, kFractionAboveFloor)};
    // Minimax in relative error on [0, 1] (Remez: 2.6e-6).
    V p = hn::MulAdd(f, hn::Set(df, 1.35341679e-2f), hn::Set(df, 5.20114606e-2f));
    p = hn::MulAdd(f, p, hn::Set(df, 2.41442757e-1f));
    p = hn::MulAdd(f, p, hn::Set(df, 6.93003834e-1f));
    p = hn::MulAdd(f, p, hn::Set(df, 1.00000259f));
    return V{_mm512_scalef_ps(p.raw, x.raw)};
  }
#endif
  return FastExp2(df, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
