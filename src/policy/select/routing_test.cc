#include "policy/select/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/rng.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(TopIndices, TiesGoToTheLowerIndexAndOrderIsKept) {
  const std::vector<double> scores{1, 3, 2, 3, 2, 2};
  EXPECT_THAT(TopIndices(scores, 1), ElementsAre(1));
  EXPECT_THAT(TopIndices(scores, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(TopIndices(scores, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(TopIndices(scores, 100), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(TopIndices(scores, 0), IsEmpty());
  EXPECT_THAT(TopIndices(scores, -1), IsEmpty());
  EXPECT_THAT(TopIndices({}, 3), IsEmpty());
}

TEST(TopIndices, NaNRanksFirstSoThatItIsNoticed) {
  const std::vector<double> scores{kInfinity, kNaN, 5, kNaN, -kInfinity};
  EXPECT_THAT(TopIndices(scores, 1), ElementsAre(1));
  EXPECT_THAT(TopIndices(scores, 2), ElementsAre(1, 3));
  EXPECT_THAT(TopIndices(scores, 3), ElementsAre(0, 1, 3));
}

TEST(TopIndices, AgreesWithAFullSort) {
  Rng rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> scores(1 + rng.Below(60));
    for (double& score : scores) score = static_cast<double>(rng.Below(8));  // many ties
    std::vector<int64_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
    const auto k = static_cast<int64_t>(rng.Below(scores.size() + 1));
    order.resize(k);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(TopIndices(scores, k), order);
  }
}

TEST(TopFloatIndices, AgreesWithTopIndices) {
  constexpr auto kInf = std::numeric_limits<float>::infinity();
  constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kSpecial[] = {0.0f, -0.0f, 1e-45f, -1e-45f, 65504.0f, -3e38f, 3e38f,
                                kInf, -kInf, kNan,   -kNan,   1.0001f,  1.0002f};
  Rng rng(3);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<float> scores(rng.Below(70));
    for (float& x : scores) {
      x = rng.Below(3) == 0 ? kSpecial[rng.Below(std::size(kSpecial))]
                            : static_cast<float>(rng.Below(9)) - 4;
    }
    const std::vector<double> wide(scores.begin(), scores.end());
    for (int64_t k = -1; k <= std::ssize(scores) + 1; ++k) {
      EXPECT_EQ(TopFloatIndices(scores, k), TopIndices(wide, k));
    }
  }
}

TEST(TopTwoGap, OfFewScores) {
  EXPECT_EQ(TopTwoGap({}), kInfinity);
  EXPECT_EQ(TopTwoGap(std::vector<double>{2}), kInfinity);
  EXPECT_EQ(TopTwoGap(std::vector<double>{2, 7, 4}), 3);
  EXPECT_EQ(TopTwoGap(std::vector<double>{7, 7}), 0);
  EXPECT_TRUE(std::isnan(TopTwoGap(std::vector<double>{7, kNaN, 1})));
}

struct Page {
  std::vector<double> keys, mean, deviation, low, high;
};

Page RandomPage(Rng& rng, int64_t n, int64_t dim) {
  Page page{{},
            std::vector<double>(dim),
            std::vector<double>(dim),
            std::vector<double>(dim, kInfinity),
            std::vector<double>(dim, -kInfinity)};
  for (int64_t i = 0; i < n * dim; ++i) page.keys.push_back(rng.Normal());
  for (int64_t c = 0; c < dim; ++c) {
    for (int64_t i = 0; i < n; ++i) {
      const double value = page.keys[i * dim + c];
      page.mean[c] += value / static_cast<double>(n);
      page.low[c] = std::min(page.low[c], value);
      page.high[c] = std::max(page.high[c], value);
    }
    for (int64_t i = 0; i < n; ++i) {
      page.deviation[c] +=
          std::pow(page.keys[i * dim + c] - page.mean[c], 2) / static_cast<double>(n);
    }
    page.deviation[c] = std::sqrt(page.deviation[c]);
  }
  return page;
}

TEST(ScorePages, MeanIsBelowAndBoxAboveEveryKeysBest) {
  Rng rng(2);
  constexpr int64_t kDim = 8;
  for (int trial = 0; trial < 100; ++trial) {
    const auto n = static_cast<int64_t>(1 + rng.Below(32));
    const Page page = RandomPage(rng, n, kDim);
    std::vector<double> query(kDim);
    for (double& value : query) value = rng.Normal();
    double best = -kInfinity;
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double score =
          std::inner_product(query.begin(), query.end(), page.keys.begin() + i * kDim, 0.0);
      best = std::max(best, score);
      mean += score / static_cast<double>(n);
    }
    const std::vector<int64_t> counts{n};
    const PageSummaries summaries{{page.mean.data(), {1, kDim}},
                                  {page.deviation.data(), {1, kDim}},
                                  {page.low.data(), {1, kDim}},
                                  {page.high.data(), {1, kDim}},
                                  counts};
    double score = 0;
    // 1e-13: sums of 32·8 terms of size up to about 10.
    ScorePages(PageScore::kMean, summaries, query, {&score, 1});
    EXPECT_NEAR(score, mean, 1e-13);
    double variance = 0;
    for (int64_t c = 0; c < kDim; ++c) variance += std::pow(query[c] * page.deviation[c], 2);
    ScorePages(PageScore::kMeanStd, summaries, query, {&score, 1});
    EXPECT_NEAR(score, std::log(static_cast<double>(n)) + mean + variance / 2, 1e-13);
    ScorePages(PageScore::kBox, summaries, query, {&score, 1});
    EXPECT_GE(score, best - 1e-13);
  }
}

TEST(SharePageScores, EveryHeadCountsOnce) {
  // The second head's scale does not let it outvote the first.
  const std::vector<double> log_mass{0, 1, 0, 1000, 0, 0};
  std::vector<double> shared(3);
  SharePageScores({log_mass.data(), {2, 3}}, shared);
  EXPECT_NEAR(std::accumulate(shared.begin(), shared.end(), 0.0), 2, 1e-15);
  EXPECT_NEAR(shared[0], 1 + 1 / (2 + std::exp(1.0)), 1e-15);
  EXPECT_NEAR(shared[1], std::exp(1.0) / (2 + std::exp(1.0)), 1e-15);
}

TEST(SharePageScores, NaNIsNotHidden) {
  const std::vector<double> log_mass{0, 1, kNaN, 0};
  std::vector<double> shared(2);
  SharePageScores({log_mass.data(), {2, 2}}, shared);
  EXPECT_TRUE(std::isnan(shared[0]));
  EXPECT_TRUE(std::isnan(shared[1]));
}

TEST(RouteTokens, TakesTheBestTokensOfTheBestPages) {
  // Five tokens in pages of two; the last page is short.
  const std::vector<double> keys{9, 1, 2, 3, 3};
  const std::vector<double> query{1};
  const Routing routing =
      RouteTokens(std::vector<double>{0, 1, 1}, {keys.data(), {5, 1}}, query, 2, {2, 2});
  EXPECT_THAT(routing.pages, ElementsAre(1, 2));
  EXPECT_THAT(routing.tokens, ElementsAre(3, 4));
  EXPECT_THAT(routing.token_scores, ElementsAre(3, 3));
  EXPECT_EQ(routing.score_gap, 0);
}

TEST(RouteTokens, FewerTokensThanAskedForIsAll) {
  const std::vector<double> keys{9, 1, 2};
  const std::vector<double> query{1};
  const Routing routing =
      RouteTokens(std::vector<double>{0, 1}, {keys.data(), {3, 1}}, query, 2, {10, 10});
  EXPECT_THAT(routing.tokens, ElementsAre(0, 1, 2));
  EXPECT_EQ(routing.score_gap, 7);
  EXPECT_THAT(RouteTokens({}, {keys.data(), {0, 1}}, query, 2, {10, 10}).tokens, IsEmpty());
}

}  // namespace
}  // namespace winnow
