// Budget, partial attention, the estimators without learned parts, and the diagnostics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "ops/reference.h"
#include "policy/residual/budget.h"
#include "policy/residual/diagnostics.h"
#include "policy/residual/estimators.h"
#include "policy/residual/partial_attention.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Context {
  int64_t n, dim, value_dim;
  std::vector<double> query, keys, values;
  std::vector<int64_t> all;

  Context(int64_t n, int64_t dim, int64_t value_dim, Rng& rng, double spread = 1)
      : n(n), dim(dim), value_dim(value_dim), all(n) {
    for (int64_t i = 0; i < dim; ++i) query.push_back(spread * rng.Normal());
    for (int64_t i = 0; i < n * dim; ++i) keys.push_back(rng.Normal());
    for (int64_t i = 0; i < n * value_dim; ++i) values.push_back(rng.Normal());
    std::iota(all.begin(), all.end(), int64_t{0});
  }
  TensorView<const double, 2> K() const { return {keys.data(), {n, dim}}; }
  TensorView<const double, 2> V() const { return {values.data(), {n, value_dim}}; }
  PartialAttention Attend(std::span<const int64_t> rows) const {
    return AttendRows(query, K(), V(), rows);
  }
};

// Each of up to 64 weighted sums and merges rounds a few times: 1e-12 is over ten times that of
// values and logits of order 10.
constexpr double kRounding = 1e-12;

void ExpectNear(const PartialAttention& a, const PartialAttention& b, double tolerance) {
  if (std::isinf(b.log_mass)) {
    EXPECT_EQ(a.log_mass, b.log_mass);
  } else {
    EXPECT_NEAR(a.log_mass, b.log_mass, tolerance);
  }
  ASSERT_EQ(a.out.size(), b.out.size());
  for (size_t c = 0; c < a.out.size(); ++c) EXPECT_NEAR(a.out[c], b.out[c], tolerance);
}

bool AllNaN(const PartialAttention& state) {
  return std::isnan(state.log_mass) &&
         std::all_of(state.out.begin(), state.out.end(), [](double x) { return std::isnan(x); });
}

TEST(ExactBudget, CountsAnchorsAndRounds) {
  EXPECT_EQ(ExactBudget(4096, 0.01, {}), 21);  // Tables 10 and 11
  EXPECT_EQ(ExactBudget(65536, 0.01, {}), 636);
  EXPECT_EQ(ExactBudget(100, 0.01, {}), 0);
  EXPECT_EQ(ExactBudget(100, 0.07, {0, 0}), 7);  // 0.07·100 is a little over 7 in binary
  EXPECT_EQ(ExactBudget(0, 0.5, {}), 0);
  EXPECT_EQ(ExactBudget(100, 7.5, {0, 0}), 100);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ExactBudget(1000, 0.5, {kHuge, kHuge}), 0);
}

TEST(ExactBudget, RefusesNonsense) {
  EXPECT_THROW(ExactBudget(100, -0.1, {}), Error);
  EXPECT_THROW(ExactBudget(100, kNaN, {}), Error);
  EXPECT_THROW(ExactBudget(-1, 0.1, {}), Error);
  EXPECT_THROW(ExactBudget(100, 0.1, {-1, 0}), Error);
  EXPECT_THROW(SplitPositions(10, 11, {}), Error);
  EXPECT_THROW(SplitPositions(10, -1, {}), Error);
}

TEST(SplitPositions, EveryPositionOnce) {
  const PositionSplit split = SplitPositions(10, 2, {2, 3});
  EXPECT_THAT(split.anchors, ElementsAre(0, 1, 5, 6, 7, 8, 9));
  EXPECT_THAT(split.middle, ElementsAre(2, 3, 4));
  for (int64_t sinks : {0, 3, 9}) {
    for (int64_t tail : {0, 4, 20}) {
      const PositionSplit s = SplitPositions(8, 1, {sinks, tail});
      EXPECT_EQ(s.anchors.size() + s.middle.size(), 8u);
      EXPECT_EQ(std::ssize(s.middle), std::max<int64_t>(0, 7 - sinks - tail));
    }
  }
}

TEST(RetrieveTop, TiesGoToTheLowerPosition) {
  const std::vector<int64_t> middle = {3, 5, 8, 9};
  EXPECT_THAT(RetrieveTop(middle, std::vector<double>{1, 2, 2, 2}, 2).retrieved, ElementsAre(5, 8));
  EXPECT_THAT(RetrieveTop(middle, std::vector<double>{1, 2, 2, 2}, 2).residual, ElementsAre(3, 9));
  EXPECT_THAT(RetrieveTop(middle, std::vector<double>{1, 2, kNaN, 2}, 1).retrieved, ElementsAre(8));
  EXPECT_THAT(RetrieveTop(middle, std::vector<double>{1, 2, 2, 2}, 99).residual, IsEmpty());
  EXPECT_THAT(RetrieveTop(middle, std::vector<double>{1, 2, 2, 2}, -1).retrieved, IsEmpty());
  EXPECT_THAT(RetrieveTop({}, {}, 3).retrieved, IsEmpty());
}

TEST(PartialAttention, MergingAnySplitIsDense) {
  Rng rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    const Context c(1 + static_cast<int64_t>(rng.Below(40)), 4, 4, rng, trial % 2 == 0 ? 1 : 8);
    PartialAttention dense = NoAttention(4);
    dense.log_mass = reference::Attention(c.query, c.K(), c.V(), 1.0, dense.out);
    const uint64_t n_parts = 1 + rng.Below(6);
    std::vector<std::vector<int64_t>> parts(n_parts);
    for (int64_t i : c.all) parts[rng.Below(n_parts)].push_back(i);
    PartialAttention merged = NoAttention(4);
    for (const auto& part : parts) Merge(merged, c.Attend(part));  // some are empty
    ExpectNear(merged, dense, kRounding);
  }
}

TEST(PartialAttention, CompletionWithTheTrueResidualIsDense) {
  Rng rng(2);
  const Context c(30, 4, 3, rng);
  const std::vector<int64_t> exact(c.all.begin(), c.all.begin() + 11);
  const std::vector<int64_t> rest(c.all.begin() + 11, c.all.end());
  const PartialAttention residual = c.Attend(rest);
  const CompletedAttention done = Complete(c.Attend(exact), residual);
  ExpectNear(done.state, c.Attend(c.all), kRounding);
  EXPECT_NEAR(done.residual_share, ResidualShare(c.Attend(exact).log_mass, residual.log_mass),
              kRounding);

  const CompletedAttention none = Complete(c.Attend(exact), NoAttention(3));
  EXPECT_EQ(none.residual_share, 0);
  EXPECT_EQ(none.state.out, c.Attend(exact).out);  // bit for bit
  EXPECT_EQ(Complete(NoAttention(3), NoAttention(3)).residual_share, 0);
}

TEST(PartialAttention, AnchorsThatCoverEverythingAreExact) {
  Rng rng(3);
  const Context c(18, 4, 3, rng);
  const PositionSplit split = SplitPositions(18, 0, {9, 9});
  EXPECT_THAT(split.middle, IsEmpty());
  const PartialAttention exact = c.Attend(split.anchors);
  EXPECT_EQ(Complete(exact, c.Attend(split.middle)).state.out, exact.out);
  EXPECT_EQ(exact.log_mass, c.Attend(c.all).log_mass);
}

TEST(PartialAttention, SubtractionUndoesMergingAndIsNeverNegative) {
  Rng rng(4);
  for (int trial = 0; trial < 200; ++trial) {
    const Context c(20, 4, 3, rng);
    const auto cut = static_cast<int64_t>(rng.Below(21));
    const std::vector<int64_t> part(c.all.begin(), c.all.begin() + cut);
    const std::vector<int64_t> rest(c.all.begin() + cut, c.all.end());
    const PartialAttention whole = c.Attend(c.all);
    const PartialAttention left = Subtract(whole, c.Attend(part), 1e-10);
    const PartialAttention truth = c.Attend(rest);
    // The rounding of both states, blown up by how small the rest is.
    ExpectNear(left, truth, kRounding * std::exp(whole.log_mass - truth.log_mass));
  }
  const PartialAttention one{{1.0}, 2.0};
  const PartialAttention more{{-1.0}, 2.0 + 1e-9};
  EXPECT_EQ(Subtract(one, more, 0).log_mass, -kInfinity);
  EXPECT_EQ(Subtract(one, {{1.0}, 2.0 + std::log1p(-1e-11)}, 1e-10).log_mass, -kInfinity);
  EXPECT_GT(Subtract(one, {{1.0}, 2.0 + std::log1p(-1e-8)}, 1e-10).log_mass, -kInfinity);
  EXPECT_EQ(Subtract(NoAttention(1), one, 1e-10).log_mass, -kInfinity);
  EXPECT_EQ(Subtract(one, NoAttention(1), 1e-10).out, one.out);
}

TEST(PartialAttention, NaNIsNeverSwallowed) {
  const PartialAttention good{{1.0, 2.0}, 0.5};
  const PartialAttention bad{{1.0, 2.0}, kNaN};
  const PartialAttention infinite{{1.0, 2.0}, kInfinity};
  for (const PartialAttention& broken : {bad, infinite}) {
    for (const PartialAttention& other : {good, NoAttention(2)}) {
      PartialAttention left = broken;
      Merge(left, other);
      EXPECT_TRUE(AllNaN(left));
      PartialAttention right = other;
      Merge(right, broken);
      EXPECT_TRUE(AllNaN(right));
      EXPECT_TRUE(AllNaN(Subtract(broken, other, 1e-10)));
    }
  }
  EXPECT_TRUE(AllNaN(Subtract(good, bad, 1e-10)));
  const std::vector<double> values = {1, 2, kNaN, 4};
  const TensorView<const double, 2> view{values.data(), {2, 2}};
  EXPECT_TRUE(AllNaN(MixRows(std::vector<double>{0, kNaN}, view, std::vector<int64_t>{0, 0})));
  const PartialAttention mixed =
      MixRows(std::vector<double>{0, 0}, view, std::vector<int64_t>{0, 1});
  EXPECT_TRUE(std::isnan(mixed.out[0]));
  EXPECT_EQ(mixed.out[1], 3);
  // A row without weight is not read.
  EXPECT_EQ(MixRows(std::vector<double>{0, -kInfinity}, view, std::vector<int64_t>{0, 1}).out[0],
            1);
}

struct Pages {
  std::vector<double> mean, variance, value_mean;
  std::vector<int64_t> counts;
  int64_t dim, value_dim;

  Pages(const Context& c, int64_t page_tokens) : dim(c.dim), value_dim(c.value_dim) {
    for (int64_t begin = 0; begin < c.n; begin += page_tokens) {
      const int64_t n = std::min(page_tokens, c.n - begin);
      counts.push_back(n);
      const auto column = [&](const std::vector<double>& rows, int64_t width, int64_t channel) {
        double sum = 0;
        for (int64_t i = begin; i < begin + n; ++i) sum += rows[i * width + channel];
        return sum / static_cast<double>(n);
      };
      for (int64_t d = 0; d < dim; ++d) {
        mean.push_back(column(c.keys, dim, d));
        double square = 0;
        for (int64_t i = begin; i < begin + n; ++i) {
          square += std::pow(c.keys[i * dim + d] - mean.back(), 2);
        }
        variance.push_back(square / static_cast<double>(n));
      }
      for (int64_t d = 0; d < value_dim; ++d) value_mean.push_back(column(c.values, value_dim, d));
    }
  }
  PageMoments View() const {
    const auto n = std::ssize(counts);
    return {{mean.data(), {n, dim}},
            {variance.data(), {n, dim}},
            {value_mean.data(), {n, value_dim}},
            counts};
  }
};

TEST(CentroidEstimate, IsExactForPagesOfOneTokenAndNeverTooLarge) {
  Rng rng(5);
  const Context c(23, 4, 3, rng);
  const Pages single(c, 1);
  ExpectNear(CentroidEstimate(single.View(), c.query, c.all), c.Attend(c.all), kRounding);
  const Pages pages(c, 8);
  const std::vector<int64_t> unread = {0, 2};
  const PartialAttention estimate = CentroidEstimate(pages.View(), c.query, unread);
  std::vector<int64_t> tokens(c.all.begin(), c.all.begin() + 8);
  tokens.insert(tokens.end(), c.all.begin() + 16, c.all.end());
  EXPECT_LT(estimate.log_mass, c.Attend(tokens).log_mass);  // Jensen
  EXPECT_EQ(CentroidEstimate(pages.View(), c.query, {}).log_mass, -kInfinity);
}

TEST(CumulantEstimate, AddsHalfTheVarianceAndIsClipped) {
  Rng rng(6);
  const Context c(16, 4, 3, rng);
  const Pages pages(c, 16);
  const std::vector<int64_t> unread = {0};
  const double centroid = CentroidEstimate(pages.View(), c.query, unread).log_mass;
  double half_variance = 0;
  for (int64_t d = 0; d < 4; ++d) {
    half_variance += 0.5 * c.query[d] * c.query[d] * pages.variance[d];
  }
  const ResidualEstimate free = CumulantEstimate(pages.View(), c.query, unread, {});
  EXPECT_NEAR(free.state.log_mass, centroid + half_variance, kRounding);
  EXPECT_EQ(free.clipped, 0);

  const std::vector<LogMassInterval> upper = {{-kInfinity, centroid}};
  const ResidualEstimate clipped = CumulantEstimate(pages.View(), c.query, unread, upper);
  EXPECT_EQ(clipped.state.log_mass, centroid);
  EXPECT_EQ(clipped.state.out, free.state.out);  // N̂ goes with Ẑ
  EXPECT_EQ(clipped.clipped, 1);
  const std::vector<LogMassInterval> lower = {{100, kInfinity}};
  EXPECT_EQ(CumulantEstimate(pages.View(), c.query, unread, lower).state.log_mass, 100);
  const std::vector<LogMassInterval> broken = {{kNaN, kInfinity}};
  EXPECT_TRUE(AllNaN(CumulantEstimate(pages.View(), c.query, unread, broken).state));
}

TEST(PageEstimates, EmptyPagesHaveNoMassAndNaNShows) {
  const std::vector<double> mean = {kNaN, 0.5};
  const std::vector<double> value = {1, 2};
  const std::vector<int64_t> counts = {0, 2};
  const PageMoments pages{
      {mean.data(), {2, 1}}, {mean.data(), {2, 1}}, {value.data(), {2, 1}}, counts};
  const std::vector<double> query = {2};
  const std::vector<int64_t> both = {0, 1};
  EXPECT_NEAR(CentroidEstimate(pages, query, both).log_mass, std::log(2) + 1, kRounding);
  EXPECT_NEAR(CumulantEstimate(pages, query, both, {}).state.log_mass, std::log(2) + 2, kRounding);
  const std::vector<int64_t> full = {2, 2};
  const PageMoments broken{pages.key_mean, pages.key_variance, pages.value_mean, full};
  EXPECT_TRUE(AllNaN(CentroidEstimate(broken, query, both)));
}

TEST(ResaEstimate, IsExactAtTheMeanQueryAndForEqualKeys) {
  Rng rng(7);
  Context c(12, 4, 3, rng);
  std::vector<double> queries(12 * 4);
  for (double& x : queries) x = rng.Normal();
  const ResaMeans means = MakeResaMeans({queries.data(), {12, 4}}, c.K());
  const PartialAttention under_mean = AttendRows(means.query, c.K(), c.V(), c.all);
  ExpectNear(ResaEstimate(means, means.query, under_mean), under_mean, kRounding);
  EXPECT_EQ(ResaEstimate(means, c.query, NoAttention(3)).log_mass, -kInfinity);

  for (int64_t i = 0; i < 12; ++i) std::copy_n(c.keys.begin(), 4, c.keys.begin() + i * 4);
  const ResaMeans equal = MakeResaMeans({queries.data(), {12, 4}}, c.K());
  ExpectNear(ResaEstimate(equal, c.query, AttendRows(equal.query, c.K(), c.V(), c.all)),
             c.Attend(c.all), kRounding);
}

TEST(DrawWithoutReplacement, DrawsDistinctPositionsEquallyOften) {
  Rng rng(8);
  const std::vector<int64_t> positions = {2, 3, 5, 7, 11};
  std::vector<int> counts(12);
  for (int trial = 0; trial < 5000; ++trial) {
    const std::vector<int64_t> drawn = DrawWithoutReplacement(positions, 2, rng);
    ASSERT_EQ(drawn.size(), 2u);
    ASSERT_LT(drawn[0], drawn[1]);
    for (int64_t position : drawn) ++counts[position];
  }
  // Binomial(5000, 0.4): σ = 35; 4.5 σ.
  for (int64_t position : positions) EXPECT_NEAR(counts[position], 2000, 156);
  EXPECT_EQ(DrawWithoutReplacement(positions, 9, rng), positions);
  EXPECT_THAT(DrawWithoutReplacement(positions, 0, rng), IsEmpty());
}

// Means over `trials` estimates of Ẑ and N̂'s first channel, in units of their standard errors.
struct Bias {
  double mass = 0;
  double numerator = 0;
};
template <typename Draw>
Bias MeasureBias(const Context& c, int trials, Draw draw) {
  double sums[2] = {};
  double squares[2] = {};
  const PartialAttention truth = c.Attend(c.all);
  for (int trial = 0; trial < trials; ++trial) {
    const std::vector<SampledStratum> strata = draw();
    const PartialAttention estimate = SampleEstimate(c.query, c.K(), c.V(), strata).state;
    const double mass = std::exp(estimate.log_mass - truth.log_mass);
    const double errors[2] = {mass - 1, mass * estimate.out[0] - truth.out[0]};
    for (int i = 0; i < 2; ++i) {
      sums[i] += errors[i];
      squares[i] += errors[i] * errors[i];
    }
  }
  const auto z = [&](int i) { return sums[i] / std::sqrt(squares[i]); };
  return {z(0), z(1)};
}

// The mean error over its standard error is about standard normal: beyond 4 once in 16,000 seeds.
TEST(SampleEstimate, IsUnbiasedUniformlyAndByPage) {
  Rng rng(9);
  const Context c(40, 4, 3, rng);
  const Bias uniform = MeasureBias(c, 4000, [&] {
    return std::vector<SampledStratum>{{DrawWithoutReplacement(c.all, 8, rng), 40}};
  });
  EXPECT_LT(std::abs(uniform.mass), 4);
  EXPECT_LT(std::abs(uniform.numerator), 4);
  const Bias by_page = MeasureBias(c, 4000, [&] {
    std::vector<SampledStratum> strata;
    for (int64_t page = 0; page < 5; ++page) {
      const std::span<const int64_t> tokens(c.all.data() + page * 8, 8);
      strata.push_back({DrawWithoutReplacement(tokens, 1 + page % 3, rng), 8});
    }
    return strata;
  });
  EXPECT_LT(std::abs(by_page.mass), 4);
  EXPECT_LT(std::abs(by_page.numerator), 4);
}

TEST(SampleEstimate, AllTokensAreExactAndIntervalsClip) {
  Rng rng(10);
  const Context c(9, 4, 3, rng);
  const PartialAttention truth = c.Attend(c.all);
  ExpectNear(SampleEstimate(c.query, c.K(), c.V(), std::vector<SampledStratum>{{c.all, 9}}).state,
             truth, kRounding);
  const std::vector<SampledStratum> clipped = {{{0}, 9, {truth.log_mass + 50, kInfinity}}};
  const ResidualEstimate estimate = SampleEstimate(c.query, c.K(), c.V(), clipped);
  EXPECT_EQ(estimate.state.log_mass, truth.log_mass + 50);
  EXPECT_EQ(estimate.clipped, 1);
  EXPECT_EQ(SampleEstimate(c.query, c.K(), c.V(), {}).state.log_mass, -kInfinity);
  Context broken = c;
  broken.keys[0] = kNaN;
  EXPECT_TRUE(AllNaN(SampleEstimate(c.query, broken.K(), c.V(), clipped).state));
}

TEST(Diagnostics, EntropyAndRecovery) {
  const std::vector<double> equal(8, 3.0);
  EXPECT_NEAR(ComputeMiddleEntropy(equal).nats, std::log(8), kRounding);
  EXPECT_NEAR(ComputeMiddleEntropy(equal).normalised, 1, kRounding);
  EXPECT_THAT(MassRecovery(equal, std::vector<int64_t>{-1, 0, 2, 8, 99}),
              ElementsAre(0, 0, 0.25, 1, 1));
  const std::vector<double> one = {-7};
  EXPECT_EQ(ComputeMiddleEntropy(one).nats, 0);
  EXPECT_TRUE(std::isnan(ComputeMiddleEntropy(one).normalised));
  EXPECT_TRUE(std::isnan(ComputeMiddleEntropy({}).nats));
  const std::vector<double> far = {1000, 0, -kInfinity};
  EXPECT_EQ(ComputeMiddleEntropy(far).nats, 0);
  EXPECT_TRUE(std::isnan(MassRecovery(std::vector<double>{0, kNaN}, std::vector<int64_t>{1})[0]));
  EXPECT_TRUE(std::isnan(ComputeMiddleEntropy(std::vector<double>{0, kInfinity}).nats));
}

TEST(Diagnostics, SharesAndErrors) {
  EXPECT_EQ(ResidualShare(-kInfinity, -kInfinity), 0);
  EXPECT_EQ(ResidualShare(-kInfinity, 2), 1);
  EXPECT_EQ(ResidualShare(2, -kInfinity), 0);
  EXPECT_NEAR(ResidualShare(std::log(3), std::log(1)), 0.25, kRounding);
  EXPECT_TRUE(std::isnan(ResidualShare(kNaN, 0)));
  const std::vector<double> zero = {0, 0};
  const std::vector<double> exact = {1, -3};
  EXPECT_EQ(RelativeL1Error(std::vector<double>{2, -2}, exact), 0.5);
  EXPECT_EQ(RelativeL1Error(zero, zero), 0);
  EXPECT_EQ(RelativeL1Error(exact, zero), kInfinity);
  EXPECT_TRUE(std::isnan(LogPartitionError(-kInfinity, -kInfinity)));
  EXPECT_EQ(LogPartitionError(1, 3), -2);
}

}  // namespace
}  // namespace winnow
