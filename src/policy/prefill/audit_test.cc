#include "policy/prefill/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "policy/prefill/prune_rows_test.h"

namespace winnow {
namespace {

// A population of observers with masses in [0, 1], as chunk tables of one chunk, for J layers and H
// heads; masses of 0 and 1 are common, where bounds are tightest.
struct Population {
  Population(Rng& rng, int n_layers, int n_heads, int n_observers)
      : heads(n_heads), observers(n_observers), layers(n_layers) {
    for (std::vector<double>& layer : layers) {
      layer.resize(static_cast<size_t>(heads) * observers);
      for (int h = 0; h < heads; ++h) {
        const double p = rng.Uniform() * rng.Uniform();
        for (int u = 0; u < observers; ++u) layer[h * observers + u] = rng.Uniform() < p ? 1 : 0;
      }
    }
  }
  TensorView<const double, 2> table(int layer) const {
    return {layers[layer].data(), {int64_t{heads} * observers, 1}};
  }
  double Mean(int layer, int head) const {
    double sum = 0;
    for (int u = 0; u < observers; ++u) sum += layers[layer][head * observers + u];
    return sum / observers;
  }
  int heads;
  int observers;
  std::vector<std::vector<double>> layers;
};

// Theorem 5.1: simultaneously for all layers and heads, so also at a layer that is chosen by
// looking at the bounds. Coins are the least favourable masses for Chernoff's bound.
TEST(Audit, BoundsHoldSimultaneouslyAsOftenAsPromised) {
  const std::vector<int32_t> all = {0};
  const double delta = 0.1;
  const int trials = 2000;
  for (const AuditMode mode : {AuditMode::kHoeffding, AuditMode::kKl}) {
    Rng rng(1);
    const Population population(rng, 3, 4, 40);
    const AuditRule rule{.mode = mode, .delta = delta, .n_draws = 60, .n_layers = 3, .n_heads = 4};
    int failures = 0;
    for (int trial = 0; trial < trials; ++trial) {
      const std::vector<double> weights =
          ObserverWeights(40, DrawObservers(40, rule.n_draws, 1000 + trial));
      bool fails = false;
      for (int layer = 0; layer < 3; ++layer) {
        const AuditResult audit =
            Audit(rule, population.table(layer), weights, all, std::vector<double>(4, 0.9));
        for (int h = 0; h < 4; ++h) fails |= population.Mean(layer, h) > audit.upper[h] + 1e-12;
      }
      failures += fails ? 1 : 0;
    }
    // δ, and four deviations of the count of 2,000 trials.
    EXPECT_LE(failures, trials * delta + 4 * std::sqrt(trials * delta * (1 - delta)));
    if (mode == AuditMode::kKl) {
      EXPECT_GT(failures, 0);  // it is not vacuous either
    }
  }
}

TEST(Audit, ExactMeansEveryObserverOnceAndNoSlack) {
  Rng rng(2);
  const Population population(rng, 1, 3, 17);
  const AuditRule rule{.n_heads = 3};
  const std::vector<int32_t> all = {0};
  const AuditResult audit =
      Audit(rule, population.table(0), ObserverWeights(17, {}), all, std::vector<double>(3, 1));
  EXPECT_EQ(AuditSlack(rule), 0);
  for (int h = 0; h < 3; ++h) {
    EXPECT_NEAR(audit.mean[h], population.Mean(0, h), 1e-14);
    EXPECT_EQ(audit.upper[h], audit.mean[h]);
  }
  const AuditResult nothing =
      Audit(rule, population.table(0), ObserverWeights(17, {}), {}, std::vector<double>(3, 0));
  EXPECT_TRUE(nothing.passes);
}

TEST(Audit, ChernoffIsNeverLooserThanHoeffding) {
  AuditRule hoeffding{.mode = AuditMode::kHoeffding, .n_draws = 200, .n_layers = 4, .n_heads = 9};
  AuditRule kl = hoeffding;
  kl.mode = AuditMode::kKl;
  for (int i = 0; i <= 100; ++i) {
    const double mean = i / 100.0;
    EXPECT_LE(AuditUpper(kl, mean), AuditUpper(hoeffding, mean) + 1e-15);
    EXPECT_GE(AuditUpper(kl, mean), mean);
  }
  EXPECT_EQ(AuditUpper(kl, 1), 1);
  // A mean of 0 has a closed form: (1 − p)^m = δ/(J·H).
  EXPECT_NEAR(AuditUpper(kl, 0), 1 - std::pow(0.05 / 36, 1.0 / 200), 1e-14);
}

TEST(Audit, ANumberThatIsNoneNeverPasses) {
  const std::vector<double> mass = {0.1, std::numeric_limits<double>::quiet_NaN(), 0.2};
  const std::vector<int32_t> all = {0};
  for (const AuditMode mode : {AuditMode::kExact, AuditMode::kHoeffding, AuditMode::kKl}) {
    const AuditResult audit = Audit({.mode = mode, .n_heads = 3}, {mass.data(), {3, 1}},
                                    ObserverWeights(1, {}), all, std::vector<double>(3, 0.999));
    EXPECT_FALSE(audit.passes);
    EXPECT_TRUE(std::isnan(audit.worst_upper));
  }
}

TEST(Audit, DrawsAreTheSeedsAndWithReplacement) {
  const std::vector<int64_t> draws = DrawObservers(5, 1000, 7);
  EXPECT_EQ(draws, DrawObservers(5, 1000, 7));
  EXPECT_NE(draws, DrawObservers(5, 1000, 8));
  for (int64_t u = 0; u < 5; ++u) {
    // 200 expected; five deviations of 12.6.
    EXPECT_NEAR(static_cast<double>(std::count(draws.begin(), draws.end(), u)), 200, 64);
  }
  const std::vector<double> weights = ObserverWeights(5, draws);
  EXPECT_NEAR(weights[0] + weights[1] + weights[2] + weights[3] + weights[4], 1, 1e-15);
  EXPECT_THAT(ObserverWeights(4, {}), testing::Each(0.25));
}

TEST(Audit, SaysWhenItCannotPassOrCannotFail) {
  AuditRule rule{.mode = AuditMode::kHoeffding, .n_draws = 1569, .n_layers = 4, .n_heads = 32};
  const std::vector<double> tight(32, 0.05);
  // docs: δ = 0.05, J = 4, H = 32 take 1,570 draws for ε = 0.05.
  EXPECT_TRUE(AuditIsVacuous(rule, tight));
  rule.n_draws = 1570;
  EXPECT_FALSE(AuditIsVacuous(rule, tight));
  const std::vector<double> wide(32, 0.1);
  EXPECT_FALSE(AuditIsUninformative(rule, true, tight, wide));
  rule.mode = AuditMode::kExact;
  EXPECT_FALSE(AuditIsVacuous(rule, std::vector<double>(32, 0)));
  EXPECT_TRUE(AuditIsUninformative(rule, true, tight, wide));
  EXPECT_TRUE(AuditIsUninformative(rule, true, tight, tight));
  EXPECT_FALSE(AuditIsUninformative(rule, false, tight, wide));
  EXPECT_FALSE(AuditIsUninformative(rule, true, wide, tight));
}

}  // namespace
}  // namespace winnow
