// Feature states, the learned map's forward pass, and its loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/rng.h"
#include "ops/reference_phi.h"
#include "policy/residual/feature_map.h"
#include "policy/residual/feature_state.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kFeatures = 5;
constexpr int64_t kValues = 3;
// 40 tokens, values of order 1: rounding of about 40·2⁻⁵³ a sum, times ten.
constexpr double kRounding = 1e-13;

struct Tokens {
  std::vector<std::vector<double>> log_phi, values;

  // Features spread over e^{±spread}.
  Tokens(int n, double spread, Rng& rng) {
    for (int i = 0; i < n; ++i) {
      log_phi.emplace_back();
      for (int f = 0; f < kFeatures; ++f) log_phi.back().push_back(spread * rng.Normal());
      values.emplace_back();
      for (int c = 0; c < kValues; ++c) values.back().push_back(rng.Normal());
    }
  }
  FeatureState State(std::span<const int> tokens) const {
    FeatureState state(kFeatures, kValues);
    for (int i : tokens) state.Add(log_phi[i], values[i]);
    return state;
  }
  // The plain sums over `tokens`: Σ_i φ_qᵀφ_k(k_i), and that times v_i.
  PartialAttention Kernel(std::span<const int> tokens, std::span<const double> log_phi_q) const {
    PartialAttention sum = NoAttention(kValues);
    double mass = 0;
    for (int i : tokens) {
      double kernel = 0;
      for (int f = 0; f < kFeatures; ++f) kernel += std::exp(log_phi_q[f] + log_phi[i][f]);
      mass += kernel;
      for (int c = 0; c < kValues; ++c) sum.out[c] += kernel * values[i][c];
    }
    for (double& x : sum.out) x /= mass;
    sum.log_mass = std::log(mass);
    return sum;
  }
};

std::vector<int> Range(int begin, int end) {
  std::vector<int> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

void ExpectNear(const PartialAttention& a, const PartialAttention& b, double tolerance) {
  EXPECT_NEAR(a.log_mass, b.log_mass, tolerance);
  for (int c = 0; c < kValues; ++c) EXPECT_NEAR(a.out[c], b.out[c], tolerance);
}

TEST(FeatureState, EstimateIsTheKernelSum) {
  Rng rng(1);
  const Tokens tokens(40, 2, rng);
  const std::vector<int> all = Range(0, 40);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<double> log_phi_q(kFeatures);
    for (double& x : log_phi_q) x = 3 * rng.Normal();
    const FeatureState state = tokens.State(all);
    const PartialAttention estimate = state.Estimate(log_phi_q, 0.7);
    PartialAttention truth = tokens.Kernel(all, log_phi_q);
    truth.log_mass += 0.7;
    ExpectNear(estimate, truth, kRounding);
    EXPECT_EQ(state.EstimateLogMass(log_phi_q, 0.7), estimate.log_mass);
  }
}

TEST(FeatureState, MergingAnySplitIsTheWhole) {
  Rng rng(2);
  const Tokens tokens(40, 3, rng);
  const std::vector<double> log_phi_q(kFeatures, 0.25);
  const PartialAttention whole = tokens.State(Range(0, 40)).Estimate(log_phi_q, 0);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<std::vector<int>> parts(1 + rng.Below(5));
    for (int i = 0; i < 40; ++i) parts[rng.Below(parts.size())].push_back(i);
    FeatureState merged(kFeatures, kValues);
    for (const auto& part : parts) merged.Merge(tokens.State(part));
    ExpectNear(merged.Estimate(log_phi_q, 0), whole, kRounding);
  }
}

TEST(FeatureState, IsStableWhereFeaturesOverflow) {
  FeatureState state(1, 1);
  state.Add(std::vector<double>{1000}, std::vector<double>{1});
  state.Add(std::vector<double>{-1000}, std::vector<double>{5});
  state.Add(std::vector<double>{1000 + std::log(3)}, std::vector<double>{2});
  const PartialAttention estimate = state.Estimate(std::vector<double>{-1500}, 0);
  EXPECT_NEAR(estimate.log_mass, -500 + std::log(4), 1e-12);  // 2⁻⁵³·1000, ten times
  EXPECT_NEAR(estimate.out[0], 1.75, 1e-12);
}

TEST(FeatureState, SubtractionLeavesTheRest) {
  Rng rng(3);
  const Tokens tokens(40, 2, rng);
  const std::vector<double> log_phi_q(kFeatures, -0.5);
  FeatureState rest = tokens.State(Range(0, 40));
  rest.Subtract(tokens.State(Range(0, 12)), kFloat64Guards.feature);
  // The rest has at least a thousandth of each feature here, so rounding grows a thousandfold.
  ExpectNear(rest.Estimate(log_phi_q, 0), tokens.Kernel(Range(12, 40), log_phi_q),
             1000 * kRounding);
}

TEST(FeatureState, SubtractionNeverMakesANegativeMass) {
  Rng rng(4);
  for (int trial = 0; trial < 300; ++trial) {
    const Tokens tokens(20, trial % 3 == 0 ? 20 : 2, rng);
    FeatureState rest = tokens.State(Range(0, 20));
    // Every third time all or more than all is taken out, in another order of summation.
    std::vector<int> taken = Range(trial % 3 == 1 ? 0 : static_cast<int>(rng.Below(20)), 20);
    std::reverse(taken.begin(), taken.end());
    if (trial % 5 == 0) taken.push_back(0);
    rest.Subtract(tokens.State(taken), kFloat64Guards.feature);
    for (int64_t f = 0; f < kFeatures; ++f) {
      ASSERT_GE(rest.scaled_u()[f], 0);
      if (rest.scaled_u()[f] != 0) continue;
      for (int64_t c = 0; c < kValues; ++c) EXPECT_EQ(rest.scaled_s().row(f)[c], 0);
    }
    const PartialAttention estimate = rest.Estimate(std::vector<double>(kFeatures, 0.0), 0);
    EXPECT_FALSE(std::isnan(estimate.log_mass));
  }
}

TEST(FeatureState, TheFeatureGuardAlsoClearsTheNumerator) {
  FeatureState middle(1, 1);
  middle.Add(std::vector<double>{0}, std::vector<double>{1});
  middle.Add(std::vector<double>{std::log(1e-11)}, std::vector<double>{1e6});
  FeatureState retrieved(1, 1);
  retrieved.Add(std::vector<double>{0}, std::vector<double>{1});
  FeatureState rest = middle;
  rest.Subtract(retrieved, 1e-10);
  EXPECT_EQ(rest.scaled_u()[0], 0);
  EXPECT_EQ(rest.scaled_s().row(0)[0], 0);
  rest = middle;
  rest.Subtract(retrieved, 1e-12);
  EXPECT_GT(rest.scaled_u()[0], 0);
}

TEST(EstimateResidual, TheMassGuardDrops) {
  FeatureState middle(2, 1);
  middle.Add(std::vector<double>{0, -20}, std::vector<double>{1});
  FeatureState rest(2, 1);
  rest.Add(std::vector<double>{-kInfinity, -20}, std::vector<double>{1});
  middle.Merge(rest);
  const std::vector<double> log_phi_q = {0, 0};  // e⁻²⁰ = 2e-9 of the middle is left
  EXPECT_FALSE(EstimateResidual(middle, rest, log_phi_q, 0, 1e-10).dropped);
  const PhiEstimate dropped = EstimateResidual(middle, rest, log_phi_q, 0, 1e-3);
  EXPECT_TRUE(dropped.dropped);
  EXPECT_EQ(dropped.state.log_mass, -kInfinity);
  EXPECT_EQ(dropped.state.out[0], 0);
  const FeatureState empty(2, 1);
  EXPECT_TRUE(EstimateResidual(empty, empty, log_phi_q, 0, 1e-10).dropped);
  EXPECT_TRUE(EstimateResidual(middle, empty, log_phi_q, 0, 0).dropped);
}

TEST(FeatureState, NaNAndInfinityShow) {
  for (double broken : {kNaN, kInfinity}) {
    for (bool first : {false, true}) {
      FeatureState state(1, 1);
      if (!first) state.Add(std::vector<double>{0}, std::vector<double>{1});
      state.Add(std::vector<double>{broken}, std::vector<double>{1});
      state.Add(std::vector<double>{1}, std::vector<double>{1});
      EXPECT_TRUE(std::isnan(state.Estimate(std::vector<double>{0}, 0).log_mass));
      FeatureState merged(1, 1);
      merged.Merge(state);
      EXPECT_TRUE(std::isnan(merged.Estimate(std::vector<double>{0}, 0).log_mass));
      FeatureState rest(1, 1);
      rest.Add(std::vector<double>{2}, std::vector<double>{1});
      rest.Subtract(state, 1e-10);
      const PhiEstimate estimate = EstimateResidual(merged, rest, std::vector<double>{0}, 0, 1e-10);
      EXPECT_TRUE(std::isnan(estimate.state.log_mass));
      EXPECT_FALSE(estimate.dropped);
    }
  }
  FeatureState good(1, 1);
  good.Add(std::vector<double>{0}, std::vector<double>{1});
  EXPECT_TRUE(std::isnan(good.Estimate(std::vector<double>{kNaN}, 0).log_mass));
  EXPECT_EQ(good.Estimate(std::vector<double>{-kInfinity}, 0).log_mass, -kInfinity);
}

TEST(FeatureMap, CountsOfTable12) {
  EXPECT_EQ(FeatureMapParameters({64, 512, 64}), 591426);
  EXPECT_EQ(FeatureMapParameters({128, 512, 64}), 624194);
  EXPECT_EQ(FeatureMapMultiplyAdds({64, 512, 64}), 512 * (64 + 512 + 512 + 64));
}

TEST(FeatureMap, FollowsItsFormula) {
  // hidden 2 of dimension 1, one feature: checked by hand.
  const std::vector<double> w_s = {1, -1};
  const std::vector<double> identity = {1, 0, 0, 1};
  const std::vector<double> zeros = {0, 0};
  const std::vector<double> w_o = {2, 3};
  const std::vector<double> b_o = {0.5};
  const FeatureMap<double> map{{w_s.data(), {2, 1}},
                               {identity.data(), {2, 2}},
                               {identity.data(), {2, 2}},
                               {w_o.data(), {1, 2}},
                               zeros,
                               zeros,
                               zeros,
                               b_o,
                               0.25,
                               -1};
  EXPECT_EQ(map.shape(), (FeatureMapShape{1, 2, 1}));
  FeatureMapScratch scratch;
  double log_phi = 0;
  LogFeatures(map, std::vector<double>{1}, scratch, {&log_phi, 1});
  const double phi = 0.5 * std::erfc(-1 / std::sqrt(2.0));  // the normal distribution at 1
  const double g0 = 1 + 0.25 * phi;
  const double g1 = -1 - 0.25 * (1 - phi);
  EXPECT_NEAR(log_phi, -1 + 2 * g0 + 3 * g1 + 0.5, 1e-14);  // a dozen roundings of numbers under 4
}

// Eight vectors pass together; eleven leave a rest, and five rows of a matrix no whole block.
TEST(FeatureMap, ManyRowsAreEachRow) {
  Rng rng(3);
  const auto numbers = [&](size_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = static_cast<float>(rng.Normal());
    return values;
  };
  const std::vector<float> w_s = numbers(21), w_1 = numbers(49), w_2 = numbers(49),
                           w_o = numbers(35), b = numbers(7);
  const FeatureMap<float> map{{w_s.data(), {7, 3}},
                              {w_1.data(), {7, 7}},
                              {w_2.data(), {7, 7}},
                              {w_o.data(), {5, 7}},
                              b,
                              b,
                              b,
                              std::span(b).first(5),
                              0.25,
                              -1};
  std::vector<double> x(11 * 3);
  for (double& value : x) value = rng.Normal();
  std::vector<float> rows(11 * 5);
  FeatureMapScratch scratch;
  LogFeaturesOfRows(map, {x.data(), {11, 3}}, scratch, {rows.data(), {11, 5}});
  std::vector<double> alone(5);
  for (size_t t = 0; t < 11; ++t) {
    LogFeatures(map, std::span<const double>(x).subspan(3 * t, 3), scratch, alone);
    for (size_t f = 0; f < 5; ++f) {
      EXPECT_FLOAT_EQ(rows[5 * t + f], static_cast<float>(alone[f])) << t << ' ' << f;
    }
  }
}

TEST(PhiLoss, IsZeroForThePerfectStudentAndCountsEachTerm) {
  const std::vector<double> teacher = {0, -1, -20};
  const reference::PhiLoss none = reference::ComputePhiLoss(teacher, teacher, {});
  EXPECT_EQ(none.total, 0);
  // The background at −5 is over −Δ = −8 by 3: Huber 2.5. The others are right.
  const reference::PhiLoss loss =
      reference::ComputePhiLoss(teacher, std::vector<double>{0, -1, -5}, {});
  EXPECT_EQ(loss.top, 0);
  EXPECT_EQ(loss.false_positive, 2.5);
  EXPECT_GT(loss.partition, 0);
  EXPECT_GT(loss.kl, 0);
  // Too small a partition sum is not punished.
  EXPECT_EQ(reference::ComputePhiLoss(teacher, std::vector<double>{-1, -2, -21}, {}).partition, 0);
}

}  // namespace
}  // namespace winnow
