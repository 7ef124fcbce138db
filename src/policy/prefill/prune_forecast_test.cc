// Fits of a layer's cost, and what is foreseen of a prompt from it.
#include "policy/prefill/prune_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/rng.h"

namespace winnow {
namespace {

TimedRows Piece(const LayerCost& cost, int64_t begin, int64_t end, double factor = 1) {
  return {begin, end,
          factor * (cost.At(static_cast<double>(end)) - cost.At(static_cast<double>(begin)))};
}

TEST(FitLayerCost, FindsExactCoefficients) {
  const LayerCost cost{.linear = 1.5e-5, .quadratic = 2e-9};
  const std::vector<TimedRows> pieces = {Piece(cost, 0, 512), Piece(cost, 512, 700),
                                         Piece(cost, 2048, 2560), Piece(cost, 6000, 6512)};
  const auto fit = FitLayerCost(pieces);
  ASSERT_TRUE(fit.has_value());
  // F(6512) − F(6000) loses some 1e-15 of F(6512), which is 13 times the difference.
  EXPECT_NEAR(fit->linear, cost.linear, 1e-12 * cost.linear);
  EXPECT_NEAR(fit->quadratic, cost.quadratic, 1e-11 * cost.quadratic);
}

TEST(FitLayerCost, DisturbedPiecesMoveLittle) {
  const LayerCost cost{.linear = 1.5e-5, .quadratic = 2e-9};
  Rng rng(1);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<TimedRows> pieces;
    for (int round = 0; round < 8; ++round) {
      for (const int64_t begin : {0, 2048, 4096, 6144}) {
        // Noise of 1 %; every sixth piece takes up to four times as long.
        double factor = 1 + 0.01 * (2 * rng.Uniform() - 1);
        if (rng.Below(6) == 0) factor *= 1 + 3 * rng.Uniform();
        pieces.push_back(Piece(cost, begin, begin + 512, factor));
      }
    }
    const auto fit = FitLayerCost(pieces);
    ASSERT_TRUE(fit.has_value());
    // A median of 32 pieces, a sixth of which lie above, is the 40 % quantile of the others: within
    // their 1 %, of a token's 1.5e-5 to 4e-5 s. The slope spans 12,288 tokens, 2.5e-5 s.
    for (const double tokens : {512.0, 4096.0, 7000.0}) {
      EXPECT_NEAR(fit->At(tokens), cost.At(tokens), 0.03 * cost.At(tokens));
    }
  }
}

TEST(FitLayerCost, NothingIsNegative) {
  // Faster the deeper: all is linear. And a line that begins below nothing.
  const auto falling = FitLayerCost(std::vector<TimedRows>{{0, 100, 1.02}, {100, 200, 1.0}});
  ASSERT_TRUE(falling.has_value());
  EXPECT_EQ(falling->quadratic, 0);
  EXPECT_GT(falling->linear, 0);
  const auto steep =
      FitLayerCost(std::vector<TimedRows>{{0, 100, 0.98}, {100, 200, 3}, {200, 300, 5.05}});
  ASSERT_TRUE(steep.has_value());
  EXPECT_EQ(steep->linear, 0);
  EXPECT_NEAR(steep->quadratic, 1e-4, 1e-6);
}

TEST(FitLayerCost, NeedsLengthsThatDiffer) {
  EXPECT_FALSE(FitLayerCost({}).has_value());
  EXPECT_FALSE(FitLayerCost(std::vector<TimedRows>{{0, 64, 1}}).has_value());
  // The same sum twice.
  EXPECT_FALSE(FitLayerCost(std::vector<TimedRows>{{0, 64, 1}, {16, 48, 1}}).has_value());
  EXPECT_FALSE(FitLayerCost(std::vector<TimedRows>{{0, 64, 0}, {64, 128, 0}}).has_value());
}

TEST(FitLayerCost, RefusesPiecesThatDisagree) {
  Rng rng(2);
  std::vector<TimedRows> pieces(30);
  for (int64_t i = 0; i < std::ssize(pieces); ++i) {
    pieces[i] = {512 * i, 512 * (i + 1), 0.1 + rng.Uniform()};
  }
  EXPECT_FALSE(FitLayerCost(pieces).has_value());
}

PrefillCosts Costs() {
  return {.layer = {.linear = 2, .quadratic = 0.01},
          .last_linear = 1,
          .score = 1e-3,
          .remove = 2e-3,
          .copy = 1e-2};
}

PrefillWork Work() {
  return {.windows = {0, 0, 0, 0},
          .tokens = 100,
          .observers = 10,
          .monitored = {1, 2, 3},
          .min_streak = 1,
          .target_kept = 40,
          .parked_bytes = 400,
          .hidden_bytes = 4};
}

TEST(Foresee, IsEquation31) {
  const PrefillSeconds dense = Foresee(Costs(), Work(), {});
  EXPECT_DOUBLE_EQ(dense.below, 3 * (200 + 100) + 100);
  EXPECT_EQ(dense.above, 0);
  EXPECT_EQ(dense.auxiliary, 0);
  const PrefillSeconds pruned =
      Foresee(Costs(), Work(), {.layers_scored = 2, .applied_layer = 2, .kept = 40});
  EXPECT_DOUBLE_EQ(pruned.below, 2 * 300);
  EXPECT_DOUBLE_EQ(pruned.above, (80 + 16) + 40);
  EXPECT_DOUBLE_EQ(pruned.auxiliary, 2 * 1 + 2 + 0.01 * (400 + 40 * 4));
}

TEST(Foresee, CountsOnlyWhatIsComputed) {
  PrefillWork work = Work();
  work.reused = 20;
  work.resumed = 60;
  work.resumed_layers = 2;
  const auto f = [](double tokens) { return 2 * tokens + 0.01 * tokens * tokens; };
  const PrefillSeconds pruned =
      Foresee(Costs(), work, {.layers_scored = 1, .applied_layer = 2, .kept = 40});
  EXPECT_DOUBLE_EQ(pruned.below, 2 * (f(100) - f(60)));
  EXPECT_DOUBLE_EQ(pruned.above, (f(40) - f(20)) + (40 - 20));
  const PrefillSeconds dense = Foresee(Costs(), work, {});
  EXPECT_DOUBLE_EQ(dense.below, 2 * (f(100) - f(60)) + (f(100) - f(20)) + (100 - 20));
  // Accepted at layer 1, but applied where the hidden states are.
  work.min_streak = 0;
  const auto forecast = ForeseePruning(Costs(), work);
  ASSERT_TRUE(forecast.has_value());
  EXPECT_EQ(forecast->first_layer, 1);
  EXPECT_DOUBLE_EQ(forecast->first.below, pruned.below);
  EXPECT_DOUBLE_EQ(forecast->first.above, pruned.above);
  EXPECT_DOUBLE_EQ(forecast->full, dense.total());
}

TEST(Foresee, ALocalLayerIsLinearBeyondItsWindow) {
  PrefillWork work = Work();
  work.windows = {10, 0, 200, 0};
  EXPECT_DOUBLE_EQ(Foresee(Costs(), work, {}).below, (2 + 0.2) * 100 + 300 + 300 + 100);
}

TEST(Foresee, KeysAndValuesThatAreMovedCount) {
  PrefillWork work = Work();
  work.parked_bytes = 0;
  work.kv_bytes = 5;
  EXPECT_DOUBLE_EQ(
      Foresee(Costs(), work, {.layers_scored = 1, .applied_layer = 3, .kept = 40}).auxiliary,
      1 + 2 + 0.01 * 40 * (4 + 3 * 5));
}

TEST(ForeseePruning, WeighsTheFirstLayerThatCanBeAccepted) {
  const auto forecast = ForeseePruning(Costs(), Work());
  ASSERT_TRUE(forecast.has_value());
  EXPECT_EQ(forecast->first_layer, 2);  // of the streak
  EXPECT_EQ(forecast->last_layer, 3);
  EXPECT_EQ(forecast->kept, 40);
  const PrefillSeconds first =
      Foresee(Costs(), Work(), {.layers_scored = 2, .applied_layer = 2, .kept = 40});
  EXPECT_DOUBLE_EQ(forecast->first.total(), first.total());
  EXPECT_DOUBLE_EQ(forecast->saving(), 1000 - first.total());
  EXPECT_LT(forecast->first.total(), forecast->last.total());
  EXPECT_TRUE(forecast->pays());
  PrefillWork work = Work();
  work.min_streak = 3;
  EXPECT_FALSE(ForeseePruning(Costs(), work).has_value());
}

TEST(ForeseePruning, SaysWhyItDoesNotPay) {
  PrefillCosts costs = Costs();
  costs.score = 1;
  const auto forecast = ForeseePruning(costs, Work());
  ASSERT_TRUE(forecast.has_value());
  EXPECT_FALSE(forecast->pays());
  EXPECT_THAT(WhyItDoesNotPay(*forecast),
              testing::AllOf(testing::HasSubstr("40 tokens left once layer 2 is accepted"),
                             testing::HasSubstr("and as it is 1000000.0")));
}

TEST(ForeseeIdealSaving, IsOfLayersThatAreAlike) {
  const PrefillCourse course{.applied_layer = 2, .kept = 40};
  const auto ideal = ForeseeIdealSaving(Costs(), Work(), course);
  ASSERT_TRUE(ideal.has_value());
  EXPECT_DOUBLE_EQ(ideal->low, 0.5 * 0.6);
  EXPECT_DOUBLE_EQ(ideal->high, 0.5 * (1 - 0.16));
  EXPECT_DOUBLE_EQ(ideal->share, 0.5 * (200 * 0.6 + 100 * 0.84) / 300);
  EXPECT_FALSE(ForeseeIdealSaving(Costs(), Work(), {}).has_value());
  PrefillWork work = Work();
  work.resumed = 10;
  EXPECT_FALSE(ForeseeIdealSaving(Costs(), work, course).has_value());
  work = Work();
  work.windows[1] = 10;
  EXPECT_FALSE(ForeseeIdealSaving(Costs(), work, course).has_value());
}

}  // namespace
}  // namespace winnow
