// Compiled once for each instruction set, like what it tests.
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fast_exp_test.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "ops/fast_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Overwrites 16 arguments with their exp2.
void Exp2Of16(float* x) {
  const hn::CappedTag<float, 16> df;
  for (size_t i = 0; i < 16; i += hn::Lanes(df)) {
    hn::StoreU(FastExp2(df, hn::LoadU(df, x + i)), df, x + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace winnow {
namespace {

HWY_EXPORT(Exp2Of16);

template <typename Fn>
void ForEachTarget(Fn fn) {
  for (int64_t all = hwy::SupportedTargets() & HWY_TARGETS; all != 0; all &= all - 1) {
    SCOPED_TRACE(hwy::TargetName(all & -all));
    hwy::SetSupportedTargetsForTest(all & -all);
    fn();
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(FastExp2, IsWithinAnUlpFrom126BelowToZero) {
  ForEachTarget([] {
    // Every 5,003rd float of [-126, -0].
    const auto first = std::bit_cast<uint32_t>(-0.0f);
    const auto last = std::bit_cast<uint32_t>(-126.0f);
    for (uint32_t bits = first; bits <= last; bits += 16 * 5003) {
      float x[16];
      float y[16];
      for (uint32_t i = 0; i < 16; ++i) {
        x[i] = y[i] = std::bit_cast<float>(std::min(last, bits + i * 5003));
      }
      HWY_DYNAMIC_DISPATCH(Exp2Of16)(y);
      for (int i = 0; i < 16; ++i) {
        const double expected = std::exp2(static_cast<double>(x[i]));
        ASSERT_NEAR(y[i], expected, expected * 0x1p-23) << x[i];
      }
    }
  });
}

TEST(FastExp2, EdgesAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ForEachTarget([] {
    float x[16] = {0.0f, -0.0f, 1.0f, -126.0f, -126.001f, -1e30f, -kInfinity};
    // NaNs of either sign, with and without a payload.
    for (uint32_t i = 0; i < 4; ++i) {
      x[8 + i] = std::bit_cast<float>(0x7fc00000u | (i % 2) << 31 | (i / 2) * 0x1234);
    }
    HWY_DYNAMIC_DISPATCH(Exp2Of16)(x);
    const float expected[7] = {1, 1, 2, 0x1p-126f, 0, 0, 0};
    for (int i = 0; i < 7; ++i) EXPECT_EQ(x[i], expected[i]) << i;
    for (int i = 8; i < 12; ++i) EXPECT_TRUE(std::isnan(x[i])) << i;
  });
}

}  // namespace
}  // namespace winnow
#endif  // HWY_ONCE
