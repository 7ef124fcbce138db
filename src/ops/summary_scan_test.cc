#include "ops/summary_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "ops/every_target_test.h"
#include "ops/paged_layer_test.h"

namespace winnow {
namespace {

using ::winnow::testing::LayerShape;
using ::winnow::testing::OnEveryTarget;
using ::winnow::testing::PagedLayer;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Masses {
  explicit Masses(const PagedLayer& layer)
      : n_pages(layer.n_full()), max(layer.query_heads() * n_pages), sum(max.size()) {}
  PageMasses View() {
    return {.n_pages = n_pages, .stride = n_pages, .max = max.data(), .sum = sum.data()};
  }
  int64_t n_pages;
  std::vector<float> max, sum;
};

Masses Scan(ThreadPool& threads, const PagedLayer& layer, SummaryScore score,
            int64_t* bytes = nullptr) {
  Masses masses(layer);
  const PageScanQuery query{.q = layer.queries(), .kv = layer.View(), .masses = masses.View()};
  PageScanWorkspace workspace;
  SummaryScan(threads, std::span(&query, 1),
              {.query_heads = layer.query_heads(), .scale = layer.scale()}, score, workspace,
              bytes);
  return masses;
}

struct Expected {
  double score = 0;
  double tolerance = 0;
};

// The score from the keys themselves, in double. A stored mean or deviation is off by at most 2^-11
// of its size, the end of a box by 2^-10 or one subnormal, the square of a deviation by 2^-10; the
// way by f32 adds 2^-12 of that. A sum of D products is rounded D times: 2^-24 · (D + 4) of the sum
// of the terms' sizes, twice that for the squares.
Expected ScoreOf(const PagedLayer& layer, SummaryScore score, int query_head, int64_t page) {
  const LayerShape& shape = layer.shape();
  const std::vector<double> keys = layer.Stored(query_head).keys;
  double sum = 0;
  double size = 0;
  double stored = 0;
  for (int c = 0; c < shape.dim; ++c) {
    const double q = static_cast<double>(layer.scale()) * layer.q(query_head)[c];
    double mean = 0;
    double squares = 0;
    double box = -kInfinity;
    double largest = 0;
    for (int64_t t = page * shape.slots; t < (page + 1) * shape.slots; ++t) {
      const double k = keys[t * shape.dim + c];
      mean += k / shape.slots;
      squares += k * k / shape.slots;
      box = std::max(box, q * k);
      largest = std::max(largest, std::abs(q * k));
    }
    const double spread = 0.5 * q * q * (squares - mean * mean);
    sum += score == SummaryScore::kMean  ? q * mean
           : score == SummaryScore::kBox ? box
                                         : q * mean + spread;
    size += largest + 2 * spread;
    stored += std::abs(q) * 0x1p-24;
    stored += score == SummaryScore::kBox    ? std::abs(box) * 0x1p-10
              : score == SummaryScore::kMean ? std::abs(q * mean) * 0x1p-11
                                             : std::abs(q * mean) * 0x1p-11 + spread * 0x1p-10;
  }
  return {sum, stored * (1 + 0x1p-11) + size * (shape.dim + 4) * 0x1p-24};
}

TEST(SummaryScan, ScoresAreThoseOfTheKeys) {
  ThreadPool threads(2);
  const PlaneSet planes = {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox};
  for (const LayerShape& shape :
       {LayerShape{2, 3, 64, 32, 650}, LayerShape{1, 1, 128, 16, 40}, LayerShape{3, 2, 40, 48, 200},
        LayerShape{1, 7, 80, 32, 33}, LayerShape{2, 1, 8, 32, 64}}) {
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      PagedLayer layer(shape, planes, dtype, 1);
      layer.Store(threads);
      for (const SummaryScore score :
           {SummaryScore::kMean, SummaryScore::kMeanStd, SummaryScore::kBox}) {
        std::vector<Expected> expected;
        for (int head = 0; head < layer.query_heads(); ++head) {
          for (int64_t page = 0; page < layer.n_full(); ++page) {
            expected.push_back(ScoreOf(layer, score, head, page));
          }
        }
        OnEveryTarget([&] {
          const Masses masses = Scan(threads, layer, score);
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_NEAR(masses.max[i], expected[i].score, expected[i].tolerance);
            EXPECT_EQ(masses.sum[i], static_cast<float>(shape.slots));
          }
        });
      }
    }
  }
}

TEST(SummaryScan, CountsTheBytesOfItsPlanes) {
  ThreadPool threads(1);
  PagedLayer layer({2, 1, 40, 32, 100}, {Plane::kKeyMean, Plane::kKeyDeviation}, DType::kF16, 1);
  layer.Store(threads);
  int64_t bytes = 5;
  Scan(threads, layer, SummaryScore::kMean, &bytes);
  EXPECT_EQ(bytes, 5 + 3 * 2 * 48 * 2);  // pages, heads, padded channels, f16
  Scan(threads, layer, SummaryScore::kMeanStd, &bytes);
  EXPECT_EQ(bytes, 5 + 3 * (3 * 2 * 48 * 2));
}

TEST(SummaryScan, WhatF16CannotHoldReachesItsPageAndHeadOnly) {
  ThreadPool threads(2);
  for (const auto& [slot, bad] :
       std::vector<std::pair<int64_t, float>>{{0, kNan},
                                              {7, kNan},
                                              {31, kNan},
                                              {31, kInfinity},
                                              {0, -kInfinity},
                                              {7, std::nextafter(65504.0f, kInfinity)},
                                              {7, -65505.0f},
                                              {3, -3e38f}}) {
    SCOPED_TRACE(bad);
    PagedLayer layer({2, 2, 64, 32, 160}, {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox},
                     DType::kF32, 2);
    layer.key(3 * 32 + slot, 1)[63] = bad;
    layer.key(3 * 32 + slot, 0)[63] = 65504;
    layer.Store(threads);
    for (const SummaryScore score :
         {SummaryScore::kMean, SummaryScore::kMeanStd, SummaryScore::kBox}) {
      OnEveryTarget([&] {
        const Masses masses = Scan(threads, layer, score);
        for (int head = 0; head < 4; ++head) {
          for (int64_t page = 0; page < 5; ++page) {
            const float score_of_page = masses.max[head * 5 + page];
            EXPECT_EQ(std::isnan(score_of_page), head >= 2 && page == 3);
            EXPECT_FALSE(std::isinf(score_of_page));
          }
        }
      });
    }
  }
}

// Exponents are rounded by 2^-24 of scores up to 60, a power of two by 2^-23, a sum of n by
// n·2^-24.
TEST(PageShares, AreMassesOverTheirSum) {
  Rng rng(3);
  for (const int64_t n : {1, 2, 7, 15, 16, 17, 31, 33, 100, 257}) {
    const int group = 3;
    const int64_t stride = n + 5;
    std::vector<float> max(group * stride, kNan);  // beyond n: must not be read
    std::vector<float> sum(group * stride, kNan);
    for (int r = 0; r < group; ++r) {
      for (int64_t p = 0; p < n; ++p) {
        max[r * stride + p] = static_cast<float>(10 * rng.Normal() + 20 * r);
        sum[r * stride + p] = static_cast<float>(1 + 31 * rng.Uniform());
      }
    }
    OnEveryTarget([&] {
      std::vector<float> shares(group * stride, -1.0f);
      std::vector<float> pooled(n, -1.0f);
      std::vector<float> log_totals(group, -1.0f);
      PageShares({.n_pages = n, .stride = stride, .max = max.data(), .sum = sum.data()}, group,
                 shares.data(), pooled.data(), log_totals.data());
      std::vector<double> expected(n, 0.0);
      const double tolerance = (60 + 4 + static_cast<double>(n)) * 0x1p-23;
      for (int r = 0; r < group; ++r) {
        double total = 0;
        const auto mass = [&](int64_t p) {
          return sum[r * stride + p] * std::exp(static_cast<double>(max[r * stride + p]));
        };
        for (int64_t p = 0; p < n; ++p) total += mass(p);
        EXPECT_NEAR(log_totals[r], std::log(total), 2 * tolerance);
        for (int64_t p = 0; p < n; ++p) {
          const double share = mass(p) / total;
          EXPECT_NEAR(shares[r * stride + p], share, tolerance * share + 1e-36);
          expected[p] += share;
        }
        EXPECT_EQ(shares[r * stride + n], -1.0f);
      }
      for (int64_t p = 0; p < n; ++p) EXPECT_NEAR(pooled[p], expected[p], 2 * tolerance);
    });
  }
}

struct HeadShares {
  std::vector<float> shares, pooled;
  float log_total = 0;
};

// Of one query head.
HeadShares SharesOf(std::vector<float>& max, std::vector<float>& sum) {
  const auto n = std::ssize(max);
  HeadShares result{std::vector<float>(n), std::vector<float>(n)};
  PageShares({.n_pages = n, .stride = n, .max = max.data(), .sum = sum.data()}, 1,
             result.shares.data(), result.pooled.data(), &result.log_total);
  return result;
}

TEST(PageShares, WhatIsNotFiniteIsNanAndNoMassIsZero) {
  for (const float bad : {kNan, kInfinity}) {
    for (const size_t at : {0U, 5U, 18U}) {
      std::vector<float> max(20, 1.0f);
      std::vector<float> sum(20, 32.0f);
      max[at] = bad;
      OnEveryTarget([&] {
        const auto [shares, pooled, log_total] = SharesOf(max, sum);
        for (size_t p = 0; p < 20; ++p) {
          EXPECT_TRUE(std::isnan(shares[p])) << bad << " at " << at << ", page " << p;
          EXPECT_TRUE(std::isnan(pooled[p]));
        }
      });
    }
  }
  // What a cascade leaves out.
  std::vector<float> max(20, -kInfinity);
  std::vector<float> sum(20, 0.0f);
  max[17] = 3;
  sum[17] = 2;
  OnEveryTarget([&] {
    auto [shares, pooled, log_total] = SharesOf(max, sum);
    for (size_t p = 0; p < 20; ++p) EXPECT_EQ(pooled[p], p == 17 ? 1.0f : 0.0f);
    EXPECT_FLOAT_EQ(log_total, 3 + std::log(2.0f));
    PageShares({}, 1, nullptr, nullptr, &log_total);
    EXPECT_EQ(log_total, -kInfinity);
  });
}

}  // namespace
}  // namespace winnow
