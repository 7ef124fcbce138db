// Tests and intervals against published worked examples and exact enumeration.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "eval/fidelity.h"
#include "eval/scoring.h"
#include "eval/statistics.h"

namespace winnow {
namespace {

PairedCounts Counts(int64_t pairs, int64_t gained, int64_t lost) {
  return {.pairs = pairs, .lost = lost, .gained = gained};
}

TEST(McNemar, PublishedExamples) {
  // Armitage and Berry, Statistical Methods in Medical Research (1994), p. 127: two culture media.
  EXPECT_NEAR(McNemarP(Counts(50, 12, 2)), 0.0129, 5e-5);
  // Bentur et al. and Cavo et al. in Fagerland, Lydersen and Laake, Statistics in Medicine 33
  // (2014), 2850, as 2 · 9 / 256 and by summing binomial coefficients.
  EXPECT_NEAR(McNemarP(Counts(21, 1, 7)), 18.0 / 256, 1e-12);
  EXPECT_NEAR(McNemarP(Counts(161, 6, 16)), 0.052478790283203125, 1e-12);
  // As statsmodels documents its own exact test.
  EXPECT_NEAR(McNemarP(Counts(314, 121, 59)), 4.434449e-06, 1e-11);
  EXPECT_EQ(McNemarP(Counts(20, 0, 0)), 1);
  EXPECT_EQ(McNemarHarmP(Counts(20, 0, 0)), 1);
  EXPECT_NEAR(McNemarHarmP(Counts(20, 0, 3)), 1.0 / 8, 1e-12);
  EXPECT_NEAR(McNemarHarmP(Counts(20, 3, 0)), 1, 1e-12);
  // More discordant pairs than binomial coefficients of a double can hold.
  EXPECT_NEAR(McNemarP(Counts(4000, 1000, 1000)), 1, 1e-9);
}

TEST(McNemar, EqualsEnumerationOfEverySignPattern) {
  for (int n = 1; n <= 10; ++n) {
    for (int lost = 0; lost <= n; ++lost) {
      int at_least = 0;  // of the 2^n patterns, those with as many losses
      int as_extreme = 0;
      for (unsigned pattern = 0; pattern < 1U << n; ++pattern) {
        const int losses = __builtin_popcount(pattern);
        at_least += losses >= lost ? 1 : 0;
        as_extreme += std::abs(2 * losses - n) >= std::abs(2 * lost - n) ? 1 : 0;
      }
      const double all = 1U << n;
      EXPECT_NEAR(McNemarHarmP(Counts(50, n - lost, lost)), at_least / all, 1e-12);
      EXPECT_NEAR(McNemarP(Counts(50, n - lost, lost)), as_extreme / all, 1e-12);
    }
  }
}

TEST(Tango, PublishedExamples) {
  // Tango (1998): 44 pairs of soft contact lens treatments, one lost, margin 0.1: z = 1.709.
  EXPECT_NEAR(TangoZ(Counts(44, 0, 1), -0.1), 1.709, 5e-4);
  // Fagerland, Lydersen and Laake (2014), airway reactivity before and after transplantation.
  const Interval interval = TangoInterval(Counts(21, 1, 7));
  EXPECT_NEAR(interval.low, -0.517, 5e-4);
  EXPECT_NEAR(interval.high, -0.026, 5e-4);
}

TEST(Tango, WithoutDifferenceItIsMcNemarsStatistic) {
  for (int gained = 0; gained <= 5; ++gained) {
    for (int lost = gained == 0 ? 1 : 0; lost <= 5; ++lost) {
      EXPECT_NEAR(TangoZ(Counts(30, gained, lost), 0),
                  (gained - lost) / std::sqrt(static_cast<double>(gained + lost)), 1e-12);
    }
  }
}

// The variance is taken at the most likely probabilities that the hypothesis allows: a grid search
// over the likelihood finds the same.
TEST(Tango, VarianceIsAtTheRestrictedMaximumLikelihood) {
  constexpr double kDifference = -0.1;
  const PairedCounts counts = Counts(40, 3, 5);
  double best = -HUGE_VAL;
  double best_lost = 0;
  constexpr int kSteps = 1'000'000;
  for (int i = 1; i < kSteps; ++i) {
    const double lost = 0.1 + 0.45 * i / kSteps;  // gained = lost - 0.1 is above 0
    const double gained = lost + kDifference;
    const double likelihood =
        3 * std::log(gained) + 5 * std::log(lost) + 32 * std::log(1 - lost - gained);
    if (likelihood > best) {
      best = likelihood;
      best_lost = lost;
    }
  }
  const double variance = 40 * (2 * best_lost + kDifference - kDifference * kDifference);
  // The grid's step of 4.5e-7 moves z by about as much.
  EXPECT_NEAR(TangoZ(counts, kDifference), (3 - 5 - 40 * kDifference) / std::sqrt(variance), 1e-5);
}

TEST(Tango, IntervalEndsAreWhereTheTestTurns) {
  for (const PairedCounts& counts :
       {Counts(21, 1, 7), Counts(50, 0, 0), Counts(50, 0, 3), Counts(5, 5, 0), Counts(1, 0, 1)}) {
    const Interval interval = TangoInterval(counts);
    EXPECT_LE(interval.low, counts.Difference());
    EXPECT_GE(interval.high, counts.Difference());
    if (interval.low > -0.999) {
      EXPECT_NEAR(TangoZ(counts, interval.low), kTwoSided95, 1e-6);
    }
    if (interval.high < 0.999) {
      EXPECT_NEAR(TangoZ(counts, interval.high), -kTwoSided95, 1e-6);
    }
    const Interval mirrored = TangoInterval(Counts(counts.pairs, counts.lost, counts.gained));
    EXPECT_NEAR(mirrored.low, -interval.high, 1e-9);
    EXPECT_NEAR(mirrored.high, -interval.low, 1e-9);
  }
  EXPECT_EQ(TangoInterval({}).low, -1);
  EXPECT_EQ(TangoInterval({}).high, 1);
}

double Binomial(int n, int k, double p) {
  return std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) *
         std::pow(p, k) * std::pow(1 - p, n - k);
}

// How often an arm that loses exactly the margin passes, over every outcome of 50 pairs: near the
// nominal 5 % (an asymptotic test may be a little above), never far from it.
TEST(Tango, NoninferiorityKeepsItsLevel) {
  constexpr int kPairs = 50;
  for (const double margin : {0.05, 0.1}) {
    for (const double gained : {0.01, 0.05, 0.1, 0.2}) {
      const double lost = gained + margin;
      double passes = 0;
      for (int b = 0; b <= kPairs; ++b) {
        for (int c = 0; b + c <= kPairs; ++c) {
          if (TangoZ(Counts(kPairs, b, c), -margin) <= kOneSided95) continue;
          passes += Binomial(kPairs, b, gained) * Binomial(kPairs - b, c, lost / (1 - gained));
        }
      }
      EXPECT_LE(passes, 0.055) << margin << " " << gained;
      EXPECT_GE(passes, 0.01) << margin << " " << gained;
    }
  }
}

// 50 prompts without any loss do not show a margin of 3 points, 100 do: z = sqrt(n·m/(1-m)).
TEST(Tango, IdenticalAnswersNeedEnoughPrompts) {
  EXPECT_NEAR(TangoZ(Counts(50, 0, 0), -0.03), std::sqrt(50 * 0.03 / 0.97), 1e-12);
  EXPECT_LT(TangoZ(Counts(50, 0, 0), -0.03), kOneSided95);
  EXPECT_GT(TangoZ(Counts(100, 0, 0), -0.03), kOneSided95);
}

std::vector<BootstrapItem> Items(const std::vector<double>& values) {
  std::vector<BootstrapItem> items;
  for (size_t i = 0; i < values.size(); ++i) items.push_back({values[i], 1, i});
  return items;
}

TEST(Bootstrap, QuantilesAreThoseOfEveryResample) {
  // Means of 3 draws from {0, 0, 1}: 0, 1/3, 2/3, 1 with 8, 12, 6, 1 of 27. The 97.5 % quantile is
  // 1 (its share, .037, is four standard errors of 10,000 resamples above .025).
  const BootstrapMean mean = Bootstrap(Items({0, 0, 1}), 7);
  EXPECT_DOUBLE_EQ(mean.mean, 1.0 / 3);
  EXPECT_DOUBLE_EQ(mean.one_sided_low, 0);
  EXPECT_DOUBLE_EQ(mean.interval.low, 0);
  EXPECT_DOUBLE_EQ(mean.interval.high, 1);
}

TEST(Bootstrap, ApproachesTheNormalInterval) {
  std::vector<double> values(400, 0);
  std::fill_n(values.begin(), 100, 1);
  const BootstrapMean mean = Bootstrap(Items(values), 3);
  // The standard error of a rate of .25 over 400 is .02165; 1.96 of it to each side. A quantile of
  // 10,000 resamples errs by 2.6 % of a standard error times 2.7 at 97.5 %, the lattice by .0025/2.
  EXPECT_NEAR(mean.interval.low, 0.25 - 1.96 * 0.02165, 0.004);
  EXPECT_NEAR(mean.interval.high, 0.25 + 1.96 * 0.02165, 0.004);
  const BootstrapMean again = Bootstrap(Items(values), 3);
  EXPECT_EQ(mean.one_sided_low, again.one_sided_low);
}

TEST(Bootstrap, ClustersAreDrawnWhole) {
  std::vector<BootstrapItem> items = Items({0, 1, 0, 1});
  for (BootstrapItem& item : items) item.cluster = 5;
  EXPECT_EQ(Bootstrap(items, 1).interval.low, 0.5);  // one cluster: nothing varies
  EXPECT_EQ(Bootstrap(items, 1).interval.high, 0.5);
  // Sums over unequal counts are pooled: (3 + 1) / (2 + 6).
  EXPECT_EQ(Bootstrap(std::vector<BootstrapItem>{{3, 2, 0}, {1, 6, 1}}, 1).mean, 0.5);
}

TEST(FidelityMeasures, WorkedExample) {
  // P = (1/2, 1/2), Q = (1/4, 3/4), as logits with different offsets.
  const std::vector<float> p = {3, 3};
  const std::vector<float> q = {0, std::log(3.0F)};
  const double kl = 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3);
  EXPECT_NEAR(KlDivergence(p, q), kl, 1e-7);  // logits are floats
  Fidelity fidelity;
  fidelity.Add(p, q, 0);
  fidelity.Add(q, q, 1);
  EXPECT_EQ(fidelity.positions, 2);
  EXPECT_NEAR(fidelity.MeanKl(), kl / 2, 1e-7);
  EXPECT_EQ(fidelity.Top1Agreement(), 0.5);  // of equals the first is the largest
  EXPECT_NEAR(fidelity.nll_dense, std::log(2.0) + std::log(4.0 / 3), 1e-6);
  EXPECT_NEAR(fidelity.PerplexityRatio(), std::exp((std::log(4.0) - std::log(2.0)) / 2), 1e-6);
  Fidelity twice = fidelity;
  twice += fidelity;
  EXPECT_EQ(twice.positions, 4);
  EXPECT_NEAR(twice.MeanKl(), fidelity.MeanKl(), 1e-12);
}

TEST(FidelityMeasures, TraceKeepsRows) {
  LogitTrace trace;
  EXPECT_EQ(trace.rows(), 0);
  trace.Append(std::vector<float>{1, 2, 3});
  trace.Append(std::vector<float>{4, 5, 6});
  ASSERT_EQ(trace.rows(), 2);
  EXPECT_EQ(trace.Row(1)[0], 4);
}

TEST(Scoring, AllAndPart) {
  const std::vector<std::string> both = {"1234567", "Heron"};
  EXPECT_EQ(ScoreAnswer("It is 1234567.", both, Match::kAll), 0.5);
  EXPECT_EQ(ScoreAnswer("It is 1234567.", both, Match::kPart), 1);
  EXPECT_EQ(ScoreAnswer("the HERON and 1234567", both, Match::kAll), 1);
  EXPECT_EQ(ScoreAnswer("", both, Match::kPart), 0);
  // A control character is a line end, which no reference of one line contains.
  EXPECT_EQ(ScoreAnswer("her\x01on", both, Match::kPart), 0);
  EXPECT_EQ(ScoreAnswer("a\x02"
                        "b",
                        {"a\nb"}, Match::kAll),
            1);
}

}  // namespace
}  // namespace winnow
