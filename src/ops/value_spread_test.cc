// The spread of a page's values, as its plane holds it, against what it bounds.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/paged_layer_test.h"

namespace winnow {
namespace {

using ::winnow::testing::PagedLayer;

constexpr int kDim = 40;
constexpr int kSlots = 32;

struct Spread {
  const float* mean;
  float radius;
  float deviation;
};

Spread SpreadOf(const PagedLayer& layer, int64_t page, int head) {
  const auto floats = [&](Plane plane) {
    return reinterpret_cast<const float*>(layer.View().PlaneOf(plane, page, head));
  };
  const float* spread = floats(Plane::kValueSpread);
  return {floats(Plane::kValueMean), spread[0], spread[1]};
}

TEST(ValueSpread, BoundsRadiusAndDeviation) {
  ThreadPool threads(2);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    PagedLayer layer({2, 1, kDim, kSlots, 5 * kSlots + 3}, {Plane::kValueMean, Plane::kValueSpread},
                     seed % 2 == 0 ? DType::kF32 : DType::kF16, seed);
    Rng rng(seed);
    for (int64_t t = 0; t < layer.shape().n_tokens; ++t) {
      for (int head = 0; head < 2; ++head) {
        for (float& x : layer.value(t, head)) {
          if (seed == 1) x += 1000;
          if (seed == 2) x = 2.5f;
          if (seed == 3 && t % kSlots == 9) x *= 500;
          if (seed == 4) x *= 1e15f;
        }
      }
    }
    layer.Store(threads);
    for (int head = 0; head < 2; ++head) {
      const PagedLayer::Rows rows = layer.Stored(head);
      for (int64_t page = 0; page < layer.n_full(); ++page) {
        const Spread spread = SpreadOf(layer, page, head);
        double radius = 0;
        double squares = 0;
        std::vector<double> along(20);  // variances along random directions
        for (double& variance : along) {
          std::vector<double> direction(kDim);
          double norm = 0;
          for (double& x : direction) {
            x = rng.Normal();
            norm += x * x;
          }
          for (int64_t t = page * kSlots; t < (page + 1) * kSlots; ++t) {
            double product = 0;
            for (int c = 0; c < kDim; ++c) {
              product += direction[c] * (rows.values[t * kDim + c] - spread.mean[c]);
            }
            variance += product * product / norm / kSlots;
          }
        }
        for (int64_t t = page * kSlots; t < (page + 1) * kSlots; ++t) {
          double distance = 0;
          for (int c = 0; c < kDim; ++c) {
            const double x = rows.values[t * kDim + c] - spread.mean[c];
            distance += x * x;
          }
          radius = std::max(radius, std::sqrt(distance));
          squares += distance / kSlots;
        }
        EXPECT_GE(spread.radius, radius) << seed;
        EXPECT_LE(spread.radius, radius * (1 + 1e-6) + 1e-30) << seed;
        for (double variance : along) EXPECT_GE(spread.deviation, std::sqrt(variance)) << seed;
        // The largest eigenvalue is at most the trace.
        EXPECT_LE(spread.deviation, std::sqrt(squares) * (1 + 1e-6) + 1e-30) << seed;
      }
    }
  }
}

TEST(ValueSpread, IsNotANumberWhereAValueIsNot) {
  ThreadPool threads(1);
  PagedLayer layer({2, 1, kDim, kSlots, 3 * kSlots}, {Plane::kValueMean, Plane::kValueSpread},
                   DType::kF32, 9);
  layer.value(kSlots + 4, 1)[3] = std::numeric_limits<float>::quiet_NaN();
  layer.Store(threads);
  for (int64_t page = 0; page < 3; ++page) {
    for (int head = 0; head < 2; ++head) {
      const Spread spread = SpreadOf(layer, page, head);
      const bool spoilt = page == 1 && head == 1;
      EXPECT_EQ(std::isnan(spread.radius), spoilt);
      EXPECT_EQ(std::isnan(spread.deviation), spoilt);
    }
  }
}

}  // namespace
}  // namespace winnow
