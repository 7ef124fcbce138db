#include "policy/certify/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "policy/certify/symmetric_eigen.h"
#include "policy/certify/test_pages.h"

namespace winnow {
namespace {

using testing::MakePage;
using testing::TestPage;

TEST(LargestEigenvalue, KnownMatrices) {
  std::vector<double> two{2, 1, 1, 2};
  EXPECT_NEAR(LargestEigenvalue(two, 2), 3, 1e-14);
  std::vector<double> zero(9, 0.0);
  EXPECT_EQ(LargestEigenvalue(zero, 3), 0);
  EXPECT_EQ(LargestEigenvalue({}, 0), 0);
  std::vector<double> broken{1, std::numeric_limits<double>::quiet_NaN(), 0, 1};
  EXPECT_TRUE(std::isnan(LargestEigenvalue(broken, 2)));
  // x·xᵀ + I with |x|² = 140·, order 24: the largest is 1 + |x|².
  constexpr size_t kOrder = 24;
  std::vector<double> matrix(kOrder * kOrder);
  double norm = 0;
  for (size_t i = 0; i < kOrder; ++i) norm += (i + 1.0) * (i + 1.0);
  for (size_t i = 0; i < kOrder; ++i) {
    for (size_t j = 0; j < kOrder; ++j) {
      matrix[i * kOrder + j] = (i + 1.0) * (j + 1.0) + (i == j ? 1 : 0);
    }
  }
  EXPECT_NEAR(LargestEigenvalue(matrix, kOrder), 1 + norm, 1e-12 * norm);
}

TEST(Summary, OfThreeTokens) {
  const std::vector<double> keys{1, 0, 3, 0, 2, 3};  // [3, 2]
  const std::vector<double> values{0, 3, 6};         // [3, 1]
  const PageSummary s = Summarize({keys.data(), {3, 2}}, {values.data(), {3, 1}});
  EXPECT_EQ(s.n, 3);
  EXPECT_EQ(s.mean, (std::vector<double>{2, 1}));
  EXPECT_EQ(s.box_lo, (std::vector<double>{1, 0}));
  EXPECT_EQ(s.box_hi, (std::vector<double>{3, 3}));
  EXPECT_DOUBLE_EQ(s.deviation_hi[0], std::sqrt(2.0 / 3));
  EXPECT_DOUBLE_EQ(s.deviation_lo[1], std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(s.radius, 2);
  EXPECT_NEAR(s.largest_variance, 2, 1e-14);  // the channels are uncorrelated
  EXPECT_EQ(s.value_mean[0], 3);
  EXPECT_EQ(s.value_radius, 3);
  EXPECT_DOUBLE_EQ(s.value_rms, std::sqrt(6.0));
  EXPECT_DOUBLE_EQ(s.value_deviation, std::sqrt(6.0));
}

// `outer` claims nothing of the page that `inner`, computed from all its tokens, contradicts.
// Slack: a few hundred roundings of figures as large as the largest key or value.
void ExpectContains(const PageSummary& outer, const PageSummary& inner, double largest) {
  const double slack = 1e-13 * largest;
  ASSERT_EQ(outer.n, inner.n);
  double key_error = 0;
  for (size_t c = 0; c < inner.mean.size(); ++c) {
    ASSERT_LE(std::abs(outer.mean[c] - inner.mean[c]), outer.mean_error[c] + slack);
    ASSERT_LE(outer.box_lo[c], inner.box_lo[c]);
    ASSERT_GE(outer.box_hi[c], inner.box_hi[c]);
    ASSERT_LE(outer.deviation_lo[c], inner.deviation_lo[c] + slack);
    ASSERT_GE(outer.deviation_hi[c], inner.deviation_hi[c] - slack);
    key_error += outer.mean_error[c];
  }
  ASSERT_GE(outer.radius + key_error, inner.radius - slack);
  ASSERT_GE(outer.largest_variance, inner.largest_variance - slack * largest);
  ASSERT_LE(testing::Distance(outer.value_mean, inner.value_mean), outer.value_mean_error + slack);
  ASSERT_GE(outer.value_radius, inner.value_radius - slack);
  ASSERT_GE(outer.value_deviation, inner.value_deviation - slack);
  ASSERT_GE(outer.value_rms, inner.value_rms - slack);
}

double LargestMagnitude(const TestPage& page) {
  double largest = 10;
  for (double x : page.keys) largest = std::max(largest, std::abs(x));
  return largest;
}

TEST(Summary, StorageRoundsOutward) {
  Rng rng(21);
  for (int i = 0; i < 2000; ++i) {
    const int kind = i % testing::kPageKinds;
    const TestPage page = MakePage(kind, 1 + i % 7, 3, rng);
    const PageSummary summary = Summarize(page.Keys(), page.Values());
    ExpectContains(Stored(summary, FloatFormat::kF32), summary, LargestMagnitude(page));
    if (kind == 3) continue;  // beyond the range of halves
    ExpectContains(Stored(summary, FloatFormat::kF16), summary, LargestMagnitude(page));
  }
}

TEST(Summary, WithoutTokensContainsTheRest) {
  Rng rng(22);
  int checked = 0;
  for (int i = 0; i < 4000; ++i) {
    const TestPage page = MakePage(i % testing::kPageKinds, 1 + i % 5, 2, rng);
    const int64_t n_removed = static_cast<int64_t>(rng.Below(page.n));
    const auto keys = page.Keys();
    const auto values = page.Values();
    const PageSummary rest =
        Summarize(keys.Slice(n_removed, page.n), values.Slice(n_removed, page.n));
    PageSummary whole = Summarize(keys, values);
    if (i % 2 == 1) whole = Stored(whole, FloatFormat::kF32);
    const PageSummary left =
        WithoutTokens(whole, keys.Slice(0, n_removed), values.Slice(0, n_removed));
    // Deviations are roots of differences: 1e-13 of the square is 3e-7 of the root, which
    // `WithoutTokens` adds itself; the test's slack is only for the sums on both sides.
    ExpectContains(left, rest, LargestMagnitude(page));
    ++checked;
  }
  EXPECT_EQ(checked, 4000);
}

TEST(Summary, NotANumberStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> keys{1, nan, 3, 0};
  const std::vector<double> values{0, nan};
  const PageSummary summary = Summarize({keys.data(), {2, 2}}, {values.data(), {2, 1}});
  EXPECT_TRUE(std::isnan(summary.mean[1]));
  EXPECT_TRUE(std::isnan(summary.radius));
  EXPECT_TRUE(std::isnan(summary.value_mean[0]));
  EXPECT_TRUE(std::isnan(Stored(summary, FloatFormat::kF16).mean[1]));
  const PageSummary left = WithoutTokens(summary, {keys.data(), {1, 2}}, {values.data(), {1, 1}});
  EXPECT_TRUE(std::isnan(left.mean[1]));
  EXPECT_TRUE(std::isnan(left.deviation_hi[1]));
}

}  // namespace
}  // namespace winnow
