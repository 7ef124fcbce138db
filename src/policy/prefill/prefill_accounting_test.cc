// What a quota retains (EntroPrefill 28-30, Proposition 7.1), what is allocated and sent, and what
// pruning saves (31)-(33).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "ops/reference_prefill.h"
#include "policy/prefill/cost_model.h"
#include "policy/prefill/page_quota.h"
#include "policy/prefill/payload.h"
#include "policy/select/page_priority.h"

namespace winnow {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> RandomShares(Rng& rng, int64_t n, double sharpness) {
  std::vector<double> p(n);
  for (double& x : p) x = std::exp(sharpness * rng.Normal());
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<double> Priorities(std::span<const double> p, int64_t page_tokens) {
  const std::vector<double> weight = {1.0};
  std::vector<double> priorities((std::ssize(p) + page_tokens - 1) / page_tokens);
  PagePriorities({p.data(), {1, std::ssize(p)}}, weight, page_tokens, priorities);
  return priorities;
}

TEST(RetainPages, KeepsThePageOfEveryTokenAboveTheThreshold) {
  Rng rng(1);
  int n_above = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const auto n = static_cast<int64_t>(20 + rng.Below(80));
    const auto page_tokens = static_cast<int64_t>(1 + rng.Below(8));
    const std::vector<double> p = RandomShares(rng, n, 0.5 + 2.5 * rng.Uniform());
    const CompetingPages competing = FindCompetingPages(
        n, page_tokens, {static_cast<int64_t>(rng.Below(5)), static_cast<int64_t>(rng.Below(9))});
    const std::vector<double> priorities = Priorities(p, page_tokens);
    const int64_t n_protected = std::ssize(priorities) - (competing.end - competing.begin);
    const auto k = static_cast<int64_t>(1 + rng.Below(6));
    const PageRetention kept = RetainPages(priorities, competing, n_protected + k);
    EXPECT_TRUE(std::is_sorted(kept.pages.begin(), kept.pages.end()));
    EXPECT_EQ(std::ssize(kept.pages), std::min(std::ssize(priorities), n_protected + k));
    for (int64_t j = 0; j < n; ++j) {
      if (p[j] <= 1.0 / static_cast<double>(k + 1)) continue;
      ++n_above;
      EXPECT_TRUE(std::binary_search(kept.pages.begin(), kept.pages.end(), j / page_tokens));
    }
  }
  EXPECT_GT(n_above, 100);
}

TEST(RetainPages, TheThresholdIsStrict) {
  // Three tokens of exactly 1/3 on three pages: with K = 2 the last one goes.
  const std::vector<double> p(3, 1.0 / 3);
  const PageRetention kept = RetainPages(Priorities(p, 1), {0, 3}, 2);
  EXPECT_THAT(kept.pages, ElementsAre(0, 1));
  EXPECT_EQ(kept.status, QuotaStatus::kMet);
}

TEST(RetainPages, ReportsAQuotaThatCannotBeMet) {
  const std::vector<double> p(5, 0.2);
  const std::vector<double> priorities = Priorities(p, 1);
  EXPECT_THAT(RetainPages(priorities, {1, 3}, 2).pages, ElementsAre(0, 3, 4));
  EXPECT_EQ(RetainPages(priorities, {1, 3}, 2).status, QuotaStatus::kBelowProtected);
  EXPECT_EQ(RetainPages(priorities, {1, 3}, 3).status, QuotaStatus::kMet);
  EXPECT_EQ(RetainPages(priorities, {1, 3}, 9).status, QuotaStatus::kAllKept);
}

TEST(FindCompetingPages, TheWritablePageIsProtectedWhileItIsNotFull) {
  const auto range = [](int64_t n, ProtectedTokens tokens) {
    const CompetingPages pages = FindCompetingPages(n, 4, tokens);
    return std::pair(pages.begin, pages.end);
  };
  EXPECT_EQ(range(16, {0, 0}), std::pair(int64_t{0}, int64_t{4}));
  EXPECT_EQ(range(15, {0, 0}), std::pair(int64_t{0}, int64_t{3}));
  EXPECT_EQ(range(16, {1, 5}), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(range(17, {4, 1}), std::pair(int64_t{1}, int64_t{4}));
  EXPECT_EQ(range(3, {9, 9}), std::pair(int64_t{1}, int64_t{1}));  // everything is protected
  EXPECT_EQ(range(0, {4, 4}), std::pair(int64_t{0}, int64_t{0}));
}

TEST(GroupImportance, IsADistributionOverResidentTokens) {
  Rng rng(2);
  std::vector<double> a;
  for (int h = 0; h < 4; ++h) {
    const std::vector<double> row = RandomShares(rng, 9, 1);
    a.insert(a.end(), row.begin(), row.end());
  }
  const std::vector<double> weights = {0.3, 0.7, 0.9, 0.1};
  const std::vector<uint8_t> resident = {1, 1, 0, 1, 0, 1, 1, 1, 1};
  std::vector<double> p(18);
  GroupImportance({a.data(), {4, 9}}, weights, resident, {p.data(), {2, 9}});
  for (int g = 0; g < 2; ++g) {
    // Nine terms below one: a few units in the last place.
    EXPECT_NEAR(std::accumulate(p.begin() + g * 9, p.begin() + (g + 1) * 9, 0.0), 1, 1e-15);
    EXPECT_EQ(p[g * 9 + 2], 0);
    EXPECT_EQ(p[g * 9 + 4], 0);
  }
}

TEST(UnionOverhead, LiesInItsBoundsAndFollowsTheDisagreementOfTwo) {
  Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    const auto n = static_cast<int64_t>(4 + rng.Below(30));
    const auto r = static_cast<int64_t>(1 + rng.Below(5));
    const auto s = static_cast<int64_t>(1 + rng.Below(n));
    std::vector<uint8_t> selected(r * n, 0);
    for (int64_t h = 0; h < r; ++h) {
      for (int64_t left = s; left > 0;) {
        uint8_t& flag = selected[h * n + static_cast<int64_t>(rng.Below(n))];
        left -= flag == 0 ? 1 : 0;
        flag = 1;
      }
    }
    const UnionOverhead all = ComputeUnionOverhead({selected.data(), {r, n}});
    EXPECT_GE(all.ratio, 1);
    EXPECT_LE(all.ratio, all.upper);
    if (r != 2) continue;
    const double d = JaccardDisagreement({selected.data(), static_cast<size_t>(n)},
                                         {selected.data() + n, static_cast<size_t>(n)});
    EXPECT_THAT(all.ratio, DoubleNear(2 / (2 - d), 1e-14));
  }
}

TEST(ScorePartition, IsThePapersExampleAndDivergesFromTheMean) {
  for (const double alpha : {0.5, 0.3, 1e-6}) {
    for (const int64_t b : {1, 8}) {
      std::vector<double> p(b, 3 * (1 - alpha) / static_cast<double>(b));
      p.resize(2 * b, 3 * alpha / static_cast<double>(b));
      const PartitionScores scores = ScorePartition(p, b, b);
      const reference::PagePartition example = reference::TwoPageExample(alpha, b);
      EXPECT_NEAR(scores.chunk, example.chunk, 1e-13);
      EXPECT_NEAR(scores.mean_page, example.mean_page, 1e-13);
    }
  }
  const std::vector<double> p = {1, 1, 0, 0, 2};
  EXPECT_EQ(ScorePartition(p, 2, 2).mean_page, -kInfinity);
  EXPECT_EQ(ScorePartition(p, 5, 8).mean_page, ScorePartition(p, 5, 8).chunk);  // on one page
  EXPECT_TRUE(std::isnan(ScorePartition(std::vector<double>{0, 0}, 1, 1).chunk));
}

TEST(Payload, CountsTheUnitThatIsReleased) {
  const KvUnit unit{.element_bytes = 2, .head_dim = 64, .page_tokens = 16};
  const std::vector<int64_t> by_group = {1, 2, 3, 3, 0, 2};
  const std::vector<int64_t> unions = {4, 3};
  EXPECT_EQ(PayloadByGroup(unit, {by_group.data(), {2, 3}}), int64_t{2} * 2 * 64 * 16 * 11);
  EXPECT_EQ(PayloadByLayer(unit, 3, unions), int64_t{2} * 2 * 64 * 16 * 3 * 7);
  EXPECT_EQ(DensePayload(unit, 2, 3, 100), int64_t{2} * 2 * 64 * 2 * 3 * 100);
  // (30): a layer's union has between K and min(GK, N) pages, so its payload is at least that of
  // the groups' equal quotas.
  const std::vector<int64_t> equal = {3, 3, 3, 3, 3, 3};
  const std::vector<int64_t> smallest = {3, 3};
  EXPECT_EQ(PayloadByGroup(unit, {equal.data(), {2, 3}}), PayloadByLayer(unit, 3, smallest));
}

TEST(Payload, AfterPruningTheLayersAboveHoldFewerPages) {
  std::vector<int64_t> pages(4);
  PagesAfterPruning(16, 100, 33, 3, /*drop_below=*/false, pages);
  EXPECT_THAT(pages, ElementsAre(7, 7, 7, 3));
  PagesAfterPruning(16, 100, 33, 3, /*drop_below=*/true, pages);
  EXPECT_THAT(pages, Each(3));
  PagesAfterPruning(16, 100, 0, 0, /*drop_below=*/false, pages);
  EXPECT_THAT(pages, Each(0));
}

std::vector<LayerCost> RandomLayers(Rng& rng) {
  std::vector<LayerCost> layers(1 + rng.Below(12));
  for (LayerCost& layer : layers) {
    layer = {.linear = 3000 * rng.Uniform(), .quadratic = 3 * rng.Uniform()};
  }
  return layers;
}

TEST(PruningCost, PaysExactlyBelowItsBreakEven) {
  Rng rng(4);
  int n_inside = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<LayerCost> layers = RandomLayers(rng);
    PruningPlan plan;
    plan.tokens = 500 + 3000 * rng.Uniform();
    plan.accepted = static_cast<int64_t>(rng.Below(layers.size()));
    PruningPlan everything = plan;
    const double deep = ComputePruningCost(layers, everything).deep_removed;
    plan.auxiliary = 1.2 * rng.Uniform() * deep;
    const double even = BreakEvenTokens(layers, plan);
    if (even < 0) {
      EXPECT_FALSE(ComputePruningCost(layers, plan).pays());  // not even with nothing kept
      continue;
    }
    ++n_inside;
    // The root is good to some 1e-15 of T, the cost's slope there to as much.
    plan.kept = even * (1 - 1e-9);
    EXPECT_TRUE(ComputePruningCost(layers, plan).pays());
    plan.kept = even * (1 + 1e-9);
    EXPECT_FALSE(ComputePruningCost(layers, plan).pays());
  }
  EXPECT_GT(n_inside, 100);
}

TEST(PruningCost, BreakEvenWithoutCostOrWithoutLayersAbove) {
  const std::vector<LayerCost> layers = {{2, 0}, {2, 0}};
  const PruningPlan plan{.tokens = 10, .kept = 5, .accepted = 1, .auxiliary = 6};
  EXPECT_EQ(BreakEvenTokens(layers, plan), 7);  // 2·(10 − T') = 6
  EXPECT_EQ(ComputePruningCost(layers, plan).saving, 4);
  EXPECT_EQ(BreakEvenTokens(layers, {.tokens = 10, .accepted = 2}), -kInfinity);
  EXPECT_LT(BreakEvenTokens(layers, {.tokens = 10, .accepted = 1, .auxiliary = 30}), 0);
}

TEST(IdealSaving, LiesBetweenItsEnds) {
  Rng rng(5);
  for (int trial = 0; trial < 200; ++trial) {
    const LayerCost layer{.linear = rng.Uniform(), .quadratic = rng.Uniform() / 1000};
    const auto layers = static_cast<int64_t>(1 + rng.Below(40));
    const IdealSaving saving =
        ComputeIdealSaving(layer, 1000 * rng.Uniform(), rng.Uniform(),
                           static_cast<int64_t>(rng.Below(layers + 1)), layers);
    EXPECT_GE(saving.share, saving.low - 1e-15);
    EXPECT_LE(saving.share, saving.high + 1e-15);
  }
  EXPECT_TRUE(std::isnan(ComputeIdealSaving({0, 0}, 10, 0.5, 1, 2).share));
}

TEST(OnlineCollision, IsTheSameForEveryTiling) {
  Rng rng(6);
  std::vector<double> scores(97);
  for (double& z : scores) z = rng.Below(9) == 0 ? -kInfinity : 40 * rng.Normal();
  double expected = 0;
  {
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    double squares = 0;
    for (double z : scores) sum += std::exp(z - max);
    for (double z : scores) squares += std::exp(2 * (z - max));
    expected = squares / (sum * sum);
  }
  for (const size_t tile : {size_t{1}, size_t{7}, size_t{96}, size_t{97}}) {
    OnlineCollision online;
    for (size_t i = 0; i < scores.size(); i += tile) {
      online.Add(std::span(scores).subspan(i, std::min(tile, scores.size() - i)));
    }
    EXPECT_NEAR(online.Collision(), expected, 1e-13);
  }
  OnlineCollision masked;
  masked.Add(std::vector<double>(3, -kInfinity));
  EXPECT_TRUE(std::isnan(masked.Collision()));
}

}  // namespace
}  // namespace winnow
