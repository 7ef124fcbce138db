#include "ops/token_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/paged_layer_test.h"

namespace winnow {
namespace {

using ::winnow::testing::LayerShape;
using ::winnow::testing::PagedLayer;

const std::vector<LayerShape> kShapes = {{3, 3, 64, 32, 100},
                                         {2, 4, 128, 32, 70},
                                         {1, 1, 8, 16, 1},
                                         {2, 7, 80, 32, 33},
                                         {1, 2, 40, 48, 96}};

// A sum of D products is off by at most D·2^-24 of the sum of their sizes.
TEST(TokenRows, ScoresAndSumsAreThoseOfTheRows) {
  ThreadPool threads(1);
  for (const LayerShape& shape : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
      if (dtype == DType::kQ8_0 && shape.dim % 32 != 0) continue;
      PagedLayer layer(shape, {}, dtype, 1);
      layer.Store(threads);
      const PagedKv kv = layer.View();
      const int64_t n = shape.n_tokens;
      const int64_t stride = n + 3;
      Rng rng(2);
      for (int head = 0; head < shape.kv_heads; ++head) {
        const TokenRows rows{&kv, head, shape.group};
        const float* q = layer.queries() + static_cast<int64_t>(head) * shape.group * shape.dim;
        std::vector<float> scores(shape.group * stride, -1.0f);
        ScoreTokens(rows, q, scores.data(), stride);
        std::vector<float> weights(shape.group * stride);
        int64_t n_used = 0;
        for (int64_t t = 0; t < n; ++t) {
          if (t % 3 == 1) continue;
          ++n_used;
          for (int r = 0; r < shape.group; ++r) {
            weights[r * stride + t] = static_cast<float>(rng.Normal());
          }
        }
        std::vector<float> out(static_cast<size_t>(shape.group) * shape.dim, 0.5f);
        EXPECT_EQ(AddWeightedTokens(rows, weights.data(), stride, out.data()), n_used);
        const PagedLayer::Rows stored = layer.Stored(head * shape.group);
        for (int r = 0; r < shape.group; ++r) {
          for (int64_t t = 0; t < n; ++t) {
            double score = 0;
            double size = 0;
            for (int c = 0; c < shape.dim; ++c) {
              const double product = stored.keys[t * shape.dim + c] * q[r * shape.dim + c];
              score += product;
              size += std::abs(product);
            }
            EXPECT_NEAR(scores[r * stride + t], score, size * shape.dim * 0x1p-24);
          }
          EXPECT_EQ(scores[r * stride + n], -1.0f);
          for (int c = 0; c < shape.dim; ++c) {
            double sum = 0.5;
            double size = 0.5;
            for (int64_t t = 0; t < n; ++t) {
              const double product = stored.values[t * shape.dim + c] * weights[r * stride + t];
              sum += product;
              size += std::abs(product);
            }
            EXPECT_NEAR(out[r * shape.dim + c], sum, size * static_cast<double>(n + 1) * 0x1p-24);
          }
        }
      }
    }
  }
}

TEST(TokenRows, NanIsReadOnlyWhereItHasAWeight) {
  ThreadPool threads(1);
  PagedLayer layer({1, 2, 64, 32, 40}, {}, DType::kF32, 3);
  layer.value(7, 0)[5] = std::numeric_limits<float>::quiet_NaN();
  layer.Store(threads);
  const PagedKv kv = layer.View();
  std::vector<float> weights(80, 1.0f);
  weights[7] = weights[47] = 0;
  std::vector<float> out(128);
  EXPECT_EQ(AddWeightedTokens({&kv, 0, 2}, weights.data(), 40, out.data()), 39);
  for (float x : out) EXPECT_TRUE(std::isfinite(x));
  weights[47] = 1e-30f;
  EXPECT_EQ(AddWeightedTokens({&kv, 0, 2}, weights.data(), 40, out.data()), 40);
  EXPECT_TRUE(std::isfinite(out[5]));
  EXPECT_TRUE(std::isnan(out[64 + 5]));
}

}  // namespace
}  // namespace winnow
