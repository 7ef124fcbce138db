#include "policy/select/page_priority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/rng.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;

std::vector<double> RandomRow(Rng& rng, int64_t n, double sharpness) {
  std::vector<double> row(n);
  for (double& x : row) x = std::exp(sharpness * rng.Normal());
  const double sum = std::accumulate(row.begin(), row.end(), 0.0);
  for (double& x : row) x /= sum;
  return row;
}

TEST(PoolingWeights, AreExponentialInNegativeEntropyAboveAFloor) {
  Rng rng(1);
  constexpr int64_t kTokens = 40;
  std::vector<double> a;
  for (const double sharpness : {0.1, 1.0, 3.0}) {
    const std::vector<double> row = RandomRow(rng, kTokens, sharpness);
    a.insert(a.end(), row.begin(), row.end());
  }
  constexpr int64_t kSinks = 3;
  std::vector<double> collisions;
  for (int h = 0; h < 3; ++h) {
    double mass = 0;
    double squares = 0;
    for (int64_t j = kSinks; j < kTokens; ++j) mass += a[h * kTokens + j];
    for (int64_t j = kSinks; j < kTokens; ++j) squares += std::pow(a[h * kTokens + j] / mass, 2);
    collisions.push_back(squares);
  }
  for (const double tau : {0.5, 1.0, 2.0}) {
    for (const double zeta : {0.0, 0.5, 1.0}) {
      std::vector<double> weights(3);
      PoolingWeights({a.data(), {3, kTokens}}, kSinks, {.tau = tau, .zeta = zeta}, weights);
      double sum = 0;
      for (double c : collisions) sum += std::pow(c, 1 / tau);
      for (int h = 0; h < 3; ++h) {
        // A few roundings of exp and log of numbers near one.
        EXPECT_NEAR(weights[h], (1 - zeta) * std::pow(collisions[h], 1 / tau) / sum + zeta / 3,
                    1e-13);
      }
    }
  }
}

TEST(PoolingWeights, AHeadOnSinksHasNoSayAndWithoutAnyTheyAreUniform) {
  const std::vector<double> a = {0.98, 0.01, 0.01, 0.0,  //
                                 0.2,  0.3,  0.4,  0.1};
  std::vector<double> weights(2);
  PoolingWeights({a.data(), {2, 4}}, 1, {.zeta = 0.2}, weights);
  EXPECT_DOUBLE_EQ(weights[0], 0.1);
  EXPECT_DOUBLE_EQ(weights[1], 0.9);
  PoolingWeights({a.data(), {2, 4}}, 1, {.zeta = 0.2, .z_min = 0.9}, weights);
  EXPECT_THAT(weights, ElementsAre(0.5, 0.5));
  PoolingWeights({a.data(), {2, 4}}, 9, {}, weights);
  EXPECT_THAT(weights, ElementsAre(0.5, 0.5));
}

TEST(PagePriorities, AreTheLargestPooledImportanceOfEachPage) {
  const std::vector<double> a = {0.1, 0.2, 0.3, 0.4, 0.0,  //
                                 0.5, 0.1, 0.1, 0.1, 0.2};
  const std::vector<double> weights = {0.75, 0.25};
  std::vector<double> priorities(3);
  PagePriorities({a.data(), {2, 5}}, weights, 2, priorities);
  EXPECT_NEAR(priorities[0], 0.2, 1e-15);
  EXPECT_NEAR(priorities[1], 0.325, 1e-15);
  EXPECT_NEAR(priorities[2], 0.05, 1e-15);
  // Of tokens that are not all resident: over what is left.
  const std::vector<double> half = {0.1, 0.3, 0.1, 0.0};
  PagePriorities({half.data(), {1, 4}}, std::vector<double>{1}, 2, std::span(priorities).first(2));
  EXPECT_NEAR(priorities[0], 0.6, 1e-15);
  std::vector<double> bad = half;
  bad[1] = std::numeric_limits<double>::quiet_NaN();
  PagePriorities({bad.data(), {1, 4}}, std::vector<double>{1}, 2, std::span(priorities).first(2));
  EXPECT_TRUE(std::isnan(priorities[0]) && std::isnan(priorities[1]));
}

TEST(RetainedPages, FillTheQuotaAboveTheProtectedPages) {
  const std::vector<double> priorities = {0, 3, 1, 3, 2, 9};
  EXPECT_THAT(RetainedPages(priorities, 1, 5, 4), ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(RetainedPages(priorities, 1, 5, 3), ElementsAre(0, 1, 5));  // the tie's lower
  EXPECT_THAT(RetainedPages(priorities, 1, 5, 1), ElementsAre(0, 5));
  EXPECT_THAT(RetainedPages(priorities, 1, 5, 60), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(RetainedPages(priorities, 3, 3, 0), ElementsAre(0, 1, 2, 3, 4, 5));
}

// Proposition 7.1: a token of more than 1/(K + 1) of the mass keeps its page.
TEST(RetainedPages, KeepEveryTokenAboveTheCompetitiveShare) {
  Rng rng(2);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<double> p = RandomRow(rng, 64, 2.5);
    std::vector<double> priorities(16);
    PagePriorities({p.data(), {1, 64}}, std::vector<double>{1}, 4, priorities);
    for (const int64_t k : {1, 2, 5}) {
      const std::vector<int64_t> pages = RetainedPages(priorities, 0, 16, k);
      for (int64_t j = 0; j < 64; ++j) {
        if (p[j] > 1.0 / static_cast<double>(k + 1)) {
          EXPECT_THAT(pages, ::testing::Contains(j / 4));
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
