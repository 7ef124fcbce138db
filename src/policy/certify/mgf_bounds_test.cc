#include "policy/certify/mgf_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "policy/certify/test_pages.h"

namespace winnow {
namespace {

using testing::MakePage;
using testing::MakeQuery;
using testing::TestPage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr MassBound kMethods[] = {MassBound::kRange, MassBound::kBox, MassBound::kJensenRadius,
                                  MassBound::kBest};

// x = b with probability a/(a + b), −a else: variance a·b, and all bounds are met with equality.
TEST(LogMgf, IsSharpForTwoPoints) {
  for (double a : {1e-6, 0.1, 2.0, 30.0}) {
    for (double b : {1e-6, 0.3, 5.0, 500.0}) {
      const double chord =
          b + std::log((a + b * std::exp(-a - b)) / (a + b));  // log((b·e^{−a} + a·e^{b})/(a + b))
      // The small cases cancel: 1e-15 absolute is what one rounding of numbers near one leaves.
      EXPECT_NEAR(LogMgfUpper(b, a * b), chord, 1e-13 * chord + 1e-15);
      EXPECT_NEAR(LogMgfLower(a, a * b), chord, 1e-13 * chord + 1e-15);
    }
  }
}

TEST(LogMgf, Edges) {
  EXPECT_EQ(LogMgfUpper(0, 0), 0);
  EXPECT_EQ(LogMgfUpper(0, 5), 0);
  EXPECT_EQ(LogMgfUpper(5, 0), 0);
  EXPECT_EQ(LogMgfUpper(kInfinity, 1), kInfinity);
  EXPECT_EQ(LogMgfUpper(1, kInfinity), kInfinity);
  EXPECT_EQ(LogMgfUpper(1e-300, 1e-300), LogMgfUpper(1e-300, 1e-300));  // no NaN
  EXPECT_EQ(LogMgfLower(kInfinity, 1), 0);
  EXPECT_EQ(LogMgfLower(1e-300, 1e300), 0);
  EXPECT_TRUE(std::isnan(LogMgfUpper(kNaN, 1)));
  EXPECT_TRUE(std::isnan(LogMgfLower(1, kNaN)));
}

void ExpectSound(const TestPage& page, const PageSummary& summary, std::span<const double> q,
                 const testing::Truth& truth, int trial) {
  const LogitShape shape = ShapeOfLogits(q, summary.View());
  ASSERT_TRUE(shape.finite);
  ASSERT_EQ(shape.n, page.n);
  for (MassBound method : kMethods) {
    const LogInterval interval = BoundLogMass(shape, method);
    ASSERT_TRUE(interval.statement.IsBound());
    ASSERT_LE(interval.lo, truth.log_mass) << "trial " << trial;
    ASSERT_GE(interval.hi, truth.log_mass) << "trial " << trial;
  }
  const LogInterval best = BoundLogMass(shape);
  for (MassBound method : kMethods) {
    // Within rounding of the figures themselves, which have 16 digits.
    const double slack = 1e-12 * (1 + std::abs(best.hi) + std::abs(best.lo)) + shape.centre_error;
    ASSERT_GE(best.lo, BoundLogMass(shape, method).lo - slack);
    ASSERT_LE(best.hi, BoundLogMass(shape, method).hi + slack);
  }
  // Rounding of the mean and of this distance, of values of about 5.
  ASSERT_LE(testing::Distance(truth.out, summary.value_mean),
            BoundValueError(shape, summary.View()) + 1e-13);
}

TEST(PageBounds, ContainTheTruthOnTenThousandPages) {
  Rng rng(31);
  for (int i = 0; i < 10000; ++i) {
    const int kind = i % testing::kPageKinds;
    const int64_t dim = 1 + static_cast<int64_t>(rng.Below(8));
    const TestPage page = MakePage(kind, dim, 2, rng);
    const std::vector<double> q = MakeQuery(dim, rng);
    const testing::Truth truth = testing::Attend(q, page.Keys(), page.Values());
    const PageSummary summary = Summarize(page.Keys(), page.Values());
    ASSERT_NO_FATAL_FAILURE(ExpectSound(page, summary, q, truth, i));
    ASSERT_NO_FATAL_FAILURE(ExpectSound(page, Stored(summary, FloatFormat::kF32), q, truth, i));
    if (kind == 3) continue;  // beyond the range of halves
    ASSERT_NO_FATAL_FAILURE(ExpectSound(page, Stored(summary, FloatFormat::kF16), q, truth, i));
  }
}

TEST(PageBounds, ContainTheTruthOfWhatIsLeftOfAPage) {
  Rng rng(32);
  for (int i = 0; i < 3000; ++i) {
    const int64_t dim = 1 + static_cast<int64_t>(rng.Below(6));
    const TestPage page = MakePage(i % testing::kPageKinds, dim, 2, rng);
    const std::vector<double> q = MakeQuery(dim, rng);
    const auto n_removed = static_cast<int64_t>(rng.Below(page.n));
    PageSummary whole = Summarize(page.Keys(), page.Values());
    if (i % 2 == 1) whole = Stored(whole, FloatFormat::kF32);
    const PageSummary left =
        WithoutTokens(whole, page.Keys().Slice(0, n_removed), page.Values().Slice(0, n_removed));
    const testing::Truth truth = testing::Attend(q, page.Keys().Slice(n_removed, page.n),
                                                 page.Values().Slice(n_removed, page.n));
    const LogInterval interval = BoundLogMass(ShapeOfLogits(q, left.View()));
    ASSERT_LE(interval.lo, truth.log_mass) << i;
    ASSERT_GE(interval.hi, truth.log_mass) << i;
  }
}

TEST(PageBounds, OneTokenAndEqualKeysAreExact) {
  Rng rng(33);
  for (int kind : {2, 4, 7}) {
    const TestPage page = MakePage(kind, 4, 2, rng);
    const std::vector<double> q = MakeQuery(4, rng);
    const PageSummary summary = Summarize(page.Keys(), page.Values());
    const LogInterval interval = BoundLogMass(ShapeOfLogits(q, summary.View()));
    // Slack of some hundred roundings of logits up to 1e3.
    EXPECT_LT(interval.hi - interval.lo, 1e-10);
  }
}

TEST(PageBounds, FiguresThatAreNotKeptAreDoneWithout) {
  Rng rng(34);
  const TestPage page = MakePage(0, 4, 2, rng);
  const std::vector<double> q{0.1, -0.2, 0.3, 0.0};
  const testing::Truth truth = testing::Attend(q, page.Keys(), page.Values());
  PageSummary summary = Summarize(page.Keys(), page.Values());
  const LogInterval all = BoundLogMass(ShapeOfLogits(q, summary.View()));
  summary.radius = summary.largest_variance = summary.value_deviation = kInfinity;
  const LogitShape shape = ShapeOfLogits(q, summary.View());
  const LogInterval some = BoundLogMass(shape);
  EXPECT_TRUE(shape.finite);
  EXPECT_LE(some.lo, truth.log_mass);
  EXPECT_GE(some.hi, truth.log_mass);
  EXPECT_GE(some.hi, all.hi - 1e-14);
  EXPECT_TRUE(std::isfinite(BoundValueError(shape, summary.View())));
  EXPECT_EQ(BoundLogMass(shape, MassBound::kRange).statement.standing, Standing::kVacuous);
}

TEST(PageBounds, NotFiniteIsNeverABound) {
  Rng rng(35);
  const TestPage page = MakePage(0, 3, 2, rng);
  const PageSummary good = Summarize(page.Keys(), page.Values());
  const std::vector<double> q{0.1, 0.2, 0.3};
  const auto expect_refused = [](std::span<const double> query, const PageSummary& summary) {
    const LogitShape shape = ShapeOfLogits(query, summary.View());
    EXPECT_FALSE(shape.finite);
    EXPECT_FALSE(BoundLogMass(shape).statement.IsBound());
    EXPECT_EQ(BoundLogMass(shape).statement.standing, Standing::kNotFinite);
    EXPECT_EQ(BoundLogMass(shape).hi, kInfinity);
    EXPECT_EQ(BoundValueError(shape, summary.View()), kInfinity);
  };
  for (double bad : {kNaN, kInfinity, -kInfinity}) {
    expect_refused(std::vector<double>{0.1, bad, 0.3}, good);
    for (auto field : {&PageSummary::mean, &PageSummary::box_lo, &PageSummary::box_hi,
                       &PageSummary::mean_error}) {
      PageSummary summary = good;
      (summary.*field)[2] = bad;
      expect_refused(q, summary);
    }
  }
  for (auto field : {&PageSummary::deviation_lo, &PageSummary::deviation_hi}) {
    PageSummary summary = good;
    (summary.*field)[0] = kNaN;
    expect_refused(q, summary);
  }
  for (auto field : {&PageSummary::radius, &PageSummary::largest_variance}) {
    PageSummary summary = good;
    summary.*field = kNaN;
    expect_refused(q, summary);
  }
  TestPage broken = page;
  broken.keys[1] = kNaN;
  expect_refused(q, Summarize(broken.Keys(), broken.Values()));
}

TEST(WeightSpread, TheLargestWeightBoundsBothFigures) {
  Rng rng(46);
  for (int trial = 0; trial < 500; ++trial) {
    const auto n = 1 + static_cast<int64_t>(rng.Below(40));
    std::vector<double> weights(n);
    for (double& x : weights) x = std::exp((trial % 5) * rng.Normal());
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    double variation = 0;
    double squares = 0;
    double largest = 0;
    for (double& x : weights) {
      x /= sum;
      variation += std::abs(x - 1 / static_cast<double>(n));
      squares += x * x;
      largest = std::max(largest, x);
    }
    const WeightSpread spread = SpreadOfWeights(n, largest);
    ASSERT_GE(spread.variation + 1e-12, variation) << trial;
    ASSERT_GE(spread.chi + 1e-6, std::sqrt(std::max(0.0, n * squares - 1))) << trial;
    // Half the tokens with twice an equal weight.
    if (n % 2 == 0) {
      const WeightSpread half = SpreadOfWeights(n, 2 / static_cast<double>(n));
      EXPECT_NEAR(half.variation, 1, 1e-9);
      EXPECT_NEAR(half.chi, 1, 1e-9);
    }
  }
  EXPECT_EQ(SpreadOfWeights(8, std::nan("")).variation, 2);
}

}  // namespace
}  // namespace winnow
