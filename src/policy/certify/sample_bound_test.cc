#include "policy/certify/sample_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "policy/certify/test_pages.h"

namespace winnow {
namespace {

using testing::MakePage;
using testing::TestPage;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Pages under one query, with every token's logit.
struct Unread {
  std::vector<SampleStratum> strata;
  std::vector<std::vector<double>> logits;
  double log_mass = 0;

  Unread(int n_pages, std::span<const double> q, Rng& rng) {
    long double total = 0;
    for (int p = 0; p < n_pages; ++p) {
      const int kind = p % 3 == 0 ? 5 : 0;  // two clusters, or normal
      const TestPage page = MakePage(kind, static_cast<int64_t>(q.size()), 1, rng);
      const PageSummary summary = Summarize(page.Keys(), page.Values());
      strata.push_back(StratumOf(ShapeOfLogits(q, summary.View()),
                                 CumulantLogMass(q, summary.View()), /*logit_error=*/0));
      logits.emplace_back();
      for (int64_t j = 0; j < page.n; ++j) {
        double logit = 0;
        for (size_t c = 0; c < q.size(); ++c) logit += q[c] * page.Keys().row(j)[c];
        logits.back().push_back(logit);
        total += std::exp(static_cast<long double>(logit));
      }
    }
    log_mass = static_cast<double>(std::log(total));
  }
};

struct Sample {
  std::vector<SampleDraw> draws;
  std::vector<double> logits;

  Sample(const SamplePlan& plan, const Unread& unread, int n, Rng& rng) {
    for (int i = 0; i < n; ++i) {
      draws.push_back(plan.Draw(rng));
      logits.push_back(unread.logits[draws.back().stratum][draws.back().token]);
    }
  }
};

TEST(SampleBound, CoversAtLeastOneMinusDeltaOverTwoThousandTrials) {
  Rng rng(71);
  const std::vector<double> q{0.5, -0.4, 0.6, 0.2};
  const Unread unread(24, q, rng);
  const SamplePlan plan(unread.strata);
  ASSERT_TRUE(plan.NeedsSample());
  for (double delta : {0.05, 0.3}) {
    int covered = 0;
    double mean_estimate = 0;
    constexpr int kTrials = 2000;
    for (int trial = 0; trial < kTrials; ++trial) {
      const Sample sample(plan, unread, 200, rng);
      const SampledMass mass = plan.Bound(sample.draws, sample.logits, delta);
      ASSERT_EQ(mass.log_mass.statement.kind, StatementKind::kStatistical);
      ASSERT_EQ(mass.log_mass.statement.delta, delta);
      const bool covers =
          mass.log_mass.lo <= unread.log_mass && unread.log_mass <= mass.log_mass.hi;
      covered += covers ? 1 : 0;
      mean_estimate += std::exp(mass.log_estimate - unread.log_mass) / kTrials;
    }
    EXPECT_GE(covered, (1 - delta) * kTrials);
    // Unbiased: 2,000 × 200 draws of a relative deviation under one leave 5 deviations of 1/632.
    EXPECT_NEAR(mean_estimate, 1, 0.008);
  }
}

TEST(SampleBound, TightensWithTheSampleAndBeatsTheSummaries) {
  Rng rng(72);
  const std::vector<double> q{0.8, -0.7, 0.9, 0.3};
  const Unread unread(24, q, rng);
  const SamplePlan plan(unread.strata);
  const LogInterval certain = plan.Bound({}, {}, 0.05).log_mass;
  EXPECT_EQ(Describe(certain.statement), "deterministic");
  EXPECT_LE(certain.lo, unread.log_mass);
  EXPECT_GE(certain.hi, unread.log_mass);
  double width = certain.hi - certain.lo;
  for (int n : {500, 5000, 50000}) {
    const Sample sample(plan, unread, n, rng);
    const LogInterval interval = plan.Bound(sample.draws, sample.logits, 0.05).log_mass;
    EXPECT_LT(interval.hi - interval.lo, width) << n;
    EXPECT_LE(interval.lo, unread.log_mass);
    EXPECT_GE(interval.hi, unread.log_mass);
    width = interval.hi - interval.lo;
    const LogInterval normal = plan.Asymptotic(sample.draws, sample.logits, 0.05).log_mass;
    EXPECT_EQ(normal.statement.kind, StatementKind::kAsymptotic);
    EXPECT_FALSE(normal.statement.IsBound());
    EXPECT_LT(normal.hi - normal.lo, width);
  }
  EXPECT_LT(width, 0.05);
}

TEST(SampleBound, AsymptoticCoversAboutOneMinusDelta) {
  Rng rng(73);
  const std::vector<double> q{0.5, -0.4, 0.6, 0.2};
  const Unread unread(24, q, rng);
  const SamplePlan plan(unread.strata);
  int covered = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Sample sample(plan, unread, 400, rng);
    const LogInterval interval = plan.Asymptotic(sample.draws, sample.logits, 0.1).log_mass;
    covered += interval.lo <= unread.log_mass && unread.log_mass <= interval.hi ? 1 : 0;
  }
  // 1,800 expected, deviation 13; a little less from skewness. A quantile off by half would show.
  EXPECT_NEAR(covered, 1800, 80);
}

TEST(SampleBound, EqualKeysNeedNoSample) {
  Rng rng(74);
  const TestPage page = MakePage(4, 3, 1, rng);
  const std::vector<double> q{0.1, 0.2, 0.3};
  const PageSummary summary = Summarize(page.Keys(), page.Values());
  SampleStratum stratum = StratumOf(ShapeOfLogits(q, summary.View()), 0, 0);
  stratum.logit_lo = stratum.logit_hi;
  const SamplePlan plan({&stratum, 1});
  EXPECT_FALSE(plan.NeedsSample());
  const SampledMass mass = plan.Bound({}, {}, 0.05);
  EXPECT_EQ(Describe(mass.log_mass.statement), "deterministic");
  EXPECT_LT(mass.log_mass.hi - mass.log_mass.lo, 1e-10);
  const SampledMass none = SamplePlan({}).Bound({}, {}, 0.05);
  EXPECT_EQ(Describe(none.log_mass.statement), "exact");
}

TEST(SampleBound, HugeLogitsDoNotOverflow) {
  std::vector<SampleStratum> strata(2);
  for (int p = 0; p < 2; ++p) {
    const double base = 5000 + 100 * p;
    strata[p] = {8, base - 50, base + 50, base, {base, base + 53, {StatementKind::kDeterministic}}};
  }
  const SamplePlan plan(strata);
  Rng rng(75);
  std::vector<SampleDraw> draws;
  std::vector<double> logits;
  for (int i = 0; i < 100; ++i) {
    draws.push_back(plan.Draw(rng));
    logits.push_back(strata[draws.back().stratum].logit_lo + 60);
  }
  const SampledMass mass = plan.Bound(draws, logits, 0.05);
  EXPECT_TRUE(std::isfinite(mass.log_mass.lo));
  EXPECT_TRUE(std::isfinite(mass.log_mass.hi));
  EXPECT_TRUE(std::isfinite(mass.log_estimate));
}

TEST(SampleBound, NotFiniteAndForeignTokensAreNeverABound) {
  Rng rng(76);
  const std::vector<double> q{0.5, -0.4, 0.6, 0.2};
  const Unread unread(4, q, rng);
  const SamplePlan plan(unread.strata);
  Sample sample(plan, unread, 50, rng);
  for (double bad : {kNaN, 1e9, -std::numeric_limits<double>::infinity()}) {
    const double good = sample.logits[7];
    sample.logits[7] = bad;
    const SampledMass mass = plan.Bound(sample.draws, sample.logits, 0.05);
    EXPECT_FALSE(mass.log_mass.statement.IsBound());
    EXPECT_EQ(mass.log_mass.statement.standing, Standing::kNotFinite);
    sample.logits[7] = good;
  }
  SampleStratum broken = unread.strata[0];
  broken.logit_hi = kNaN;
  const SamplePlan none({&broken, 1});
  EXPECT_FALSE(none.NeedsSample());
  EXPECT_FALSE(none.Bound({}, {}, 0.05).log_mass.statement.IsBound());
}

}  // namespace
}  // namespace winnow
