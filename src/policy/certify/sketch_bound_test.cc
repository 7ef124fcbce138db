#include "policy/certify/sketch_bound.h"

#include <gtest/gtest.h>

#include <cmath>

#include "policy/certify/outward_rounding.h"
#include "policy/certify/test_pages.h"

namespace winnow {
namespace {

using testing::MakePage;
using testing::MakeQuery;
using testing::TestPage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Keys [n, D] on a grid of 2^bits levels per channel, minimum and step as floats, outward.
struct Sketch {
  std::vector<double> keys, steps;
  double residual = 0;  // max ‖k − k̂‖

  Sketch(const TestPage& page, int bits) : keys(page.keys), steps(page.dim) {
    const int levels = (1 << bits) - 1;
    for (int64_t c = 0; c < page.dim; ++c) {
      double lo = page.keys[c];
      double hi = lo;
      for (int64_t i = 0; i < page.n; ++i) {
        lo = std::min(lo, page.keys[i * page.dim + c]);
        hi = std::max(hi, page.keys[i * page.dim + c]);
      }
      lo = RoundDown(lo, FloatFormat::kF32);
      // Once more up by a unit, so that rounding of the quotient cannot leave the top uncovered.
      steps[c] = RoundUp((hi - lo) / levels * (1 + 1e-15), FloatFormat::kF32);
      for (int64_t i = 0; i < page.n; ++i) {
        double& key = keys[i * page.dim + c];
        if (steps[c] > 0) key = lo + steps[c] * std::round((key - lo) / steps[c]);
      }
    }
    for (int64_t i = 0; i < page.n; ++i) {
      const std::span<const double> a(page.keys.data() + i * page.dim, page.dim);
      const std::span<const double> b(keys.data() + i * page.dim, page.dim);
      residual = std::max(residual, static_cast<double>(testing::Distance(a, b)) * (1 + 1e-12));
    }
  }
};

TEST(SketchBound, ContainsTheTruth) {
  Rng rng(61);
  for (int i = 0; i < 10000; ++i) {
    const int64_t dim = 1 + static_cast<int64_t>(rng.Below(8));
    const TestPage page = MakePage(i % testing::kPageKinds, dim, 2, rng);
    const std::vector<double> q = MakeQuery(dim, rng);
    const int bits = 2 << (i % 3);
    const Sketch sketch(page, bits);
    std::vector<double> scores(page.n, 0.0);
    double magnitude = 0;
    for (int64_t j = 0; j < page.n; ++j) {
      for (int64_t c = 0; c < dim; ++c) {
        scores[j] += q[c] * sketch.keys[j * dim + c];
        magnitude = std::max(magnitude, std::abs(q[c] * sketch.keys[j * dim + c]));
      }
    }
    // Of D products and of k̂ = minimum + step·code in double.
    const double rounding = 1e-15 * static_cast<double>(dim) * magnitude;
    const double error =
        SketchScoreError(q, sketch.steps, i % 2 == 0 ? sketch.residual : kInfinity) + rounding;
    const testing::Truth truth = testing::Attend(q, page.Keys(), page.Values());
    const LogInterval interval = BoundSketchedMass(scores, error);
    ASSERT_TRUE(interval.statement.IsBound());
    ASSERT_EQ(interval.statement.kind, StatementKind::kDeterministic);
    ASSERT_LE(interval.lo, truth.log_mass) << i;
    ASSERT_GE(interval.hi, truth.log_mass) << i;

    // The output with sketched scores and exact values.
    const std::vector<double> one{1.0};
    const testing::Truth sketched =
        testing::Attend(one, {scores.data(), {page.n, 1}}, page.Values());
    const double radius = Summarize(page.Keys(), page.Values()).value_radius;
    ASSERT_LE(testing::Distance(sketched.out, truth.out),
              SketchValueError(error, radius, 0) + 1e-15)
        << i;
  }
}

TEST(SketchBound, TheSmallerOfNormAndSteps) {
  const std::vector<double> q{3, 4};
  const std::vector<double> steps{0.2, 0.1};
  EXPECT_NEAR(SketchScoreError(q, steps), 0.5, 1e-11);
  EXPECT_NEAR(SketchScoreError(q, steps, 0.05), 0.25, 1e-11);
  EXPECT_NEAR(SketchScoreError(q, steps, 10), 0.5, 1e-11);
  EXPECT_EQ(SketchScoreError(q, steps, 0), 0);
}

TEST(SketchBound, OneTokenAndErrorsByToken) {
  const std::vector<double> scores{1, 2};
  const LogInterval one = BoundSketchedMass(std::span(scores).first(1), 0.1);
  EXPECT_NEAR(one.lo, 0.9, 1e-13);
  EXPECT_NEAR(one.hi, 1.1, 1e-13);
  const std::vector<double> errors{0.1, 0.2};
  const LogInterval two = BoundSketchedMass(scores, errors);
  EXPECT_NEAR(two.lo, std::log(std::exp(0.9) + std::exp(1.8)), 1e-13);
  EXPECT_NEAR(two.hi, std::log(std::exp(1.1) + std::exp(2.2)), 1e-13);
  EXPECT_EQ(BoundSketchedMass({}, 0.1).hi, -kInfinity);
}

TEST(SketchBound, NotFiniteIsNeverABound) {
  const std::vector<double> q{1, 1};
  for (double bad : {kNaN, -1.0}) {
    EXPECT_TRUE(std::isnan(SketchScoreError(q, std::vector<double>{0.1, bad})));
  }
  EXPECT_TRUE(std::isnan(SketchScoreError(std::vector<double>{1, kNaN}, q)));
  EXPECT_TRUE(std::isnan(SketchScoreError(q, q, kNaN)));
  const std::vector<double> scores{1, 2};
  for (double bad : {kNaN, kInfinity, -1.0}) {
    EXPECT_FALSE(BoundSketchedMass(scores, bad).statement.IsBound());
    EXPECT_EQ(BoundSketchedMass(scores, bad).hi, kInfinity);
  }
  for (double bad : {kNaN, kInfinity, -kInfinity}) {
    EXPECT_FALSE(BoundSketchedMass(std::vector<double>{1, bad}, 0.1).statement.IsBound());
  }
}

}  // namespace
}  // namespace winnow
