#include "policy/certify/outward_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/rng.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr FloatFormat kFormats[] = {FloatFormat::kF32, FloatFormat::kF16};

TEST(OutwardRounding, BracketsAndNearestIsOneOfTheTwo) {
  Rng rng(11);
  for (FloatFormat format : kFormats) {
    for (int i = 0; i < 20000; ++i) {
      const double x = rng.Normal() * std::pow(2.0, static_cast<int>(rng.Below(45)) - 30);
      const double down = RoundDown(x, format);
      const double up = RoundUp(x, format);
      const double nearest = RoundNearest(x, format);
      ASSERT_LE(down, x);
      ASSERT_GE(up, x);
      ASSERT_TRUE(nearest == down || nearest == up);
      ASSERT_LE(std::abs(x - nearest), NearestError(nearest, format));
      ASSERT_EQ(RoundUp(up, format), up);
      ASSERT_EQ(RoundDown(up, format), up);
    }
  }
}

TEST(OutwardRounding, FloatAgreesWithTheProcessor) {
  Rng rng(12);
  for (int i = 0; i < 20000; ++i) {
    const double x = rng.Normal() * std::pow(2.0, static_cast<int>(rng.Below(290)) - 160);
    const auto nearest = static_cast<float>(x);
    ASSERT_EQ(RoundNearest(x, FloatFormat::kF32), nearest);
    const double up = RoundUp(x, FloatFormat::kF32);
    ASSERT_EQ(up, nearest >= x ? nearest
                               : std::nextafter(nearest, std::numeric_limits<float>::infinity()));
  }
}

TEST(OutwardRounding, EveryHalfIsItself) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const double value = HalfValue(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(HalfValue(HalfBits(value))));
      ASSERT_TRUE(std::isnan(RoundUp(value, FloatFormat::kF16)));
      continue;
    }
    ASSERT_EQ(HalfBits(value), bits);
    ASSERT_EQ(RoundUp(value, FloatFormat::kF16), value);
    ASSERT_EQ(RoundDown(value, FloatFormat::kF16), value);
    ASSERT_EQ(RoundNearest(value, FloatFormat::kF16), value);
  }
  EXPECT_EQ(HalfValue(0x3c00), 1);
  EXPECT_EQ(HalfValue(0x7bff), 65504);
  EXPECT_EQ(HalfValue(0x0001), 0x1p-24);
}

TEST(OutwardRounding, BeyondTheRange) {
  EXPECT_EQ(RoundUp(65505, FloatFormat::kF16), kInfinity);
  EXPECT_EQ(RoundDown(65505, FloatFormat::kF16), 65504);
  EXPECT_EQ(RoundDown(1e9, FloatFormat::kF16), 65504);
  EXPECT_EQ(RoundUp(-1e9, FloatFormat::kF16), -65504);
  EXPECT_EQ(RoundDown(-1e9, FloatFormat::kF16), -kInfinity);
  EXPECT_EQ(RoundNearest(65519, FloatFormat::kF16), 65504);
  EXPECT_EQ(RoundNearest(65520, FloatFormat::kF16), kInfinity);
  EXPECT_EQ(RoundUp(1e-30, FloatFormat::kF16), 0x1p-24);
  EXPECT_EQ(RoundDown(1e-30, FloatFormat::kF16), 0);
  EXPECT_EQ(RoundDown(-1e-30, FloatFormat::kF16), -0x1p-24);
  EXPECT_EQ(RoundUp(kInfinity, FloatFormat::kF32), kInfinity);
  EXPECT_EQ(RoundUp(-kInfinity, FloatFormat::kF32), -kInfinity);
  EXPECT_EQ(NearestError(kInfinity, FloatFormat::kF16), kInfinity);
  EXPECT_EQ(NearestError(0, FloatFormat::kF16), 0x1p-25);
  EXPECT_EQ(NearestError(1, FloatFormat::kF32), 0x1p-24);
}

}  // namespace
}  // namespace winnow
