#include "policy/certify/leakage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/rng.h"
#include "ops/reference_hull.h"
#include "ops/reference_vashista.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Leakage, EpsilonForLeakageInvertsTheBound) {
  for (double c : {1.0, 2.0}) {
    for (double leakage : {1e-6, 1e-2, 0.5}) {
      const double eps = EpsilonForLeakage(1000, 0.3, leakage, c);
      EXPECT_NEAR(LeakageBound(1000, 0.3, eps, c), leakage, 1e-12 * leakage);
    }
  }
}

TEST(Leakage, EmptyComplementAndNoGap) {
  EXPECT_EQ(LeakageBound(0, kInfinity, 0.1, 2), 0);
  EXPECT_EQ(EpsilonForLeakage(0, 1, 0.1, 2), kInfinity);
  EXPECT_EQ(EpsilonForLeakage(1, 1, 1.5, 2), kInfinity);
  EXPECT_EQ(EpsilonForLeakage(10, 0, 0.1, 2), 0);

  const SupportGeometry no_gap{8, 2, 0, 1, 0.5};
  EXPECT_EQ(UnconditionalLeakage(no_gap, 0.1), kInfinity);
  EXPECT_TRUE(CertifyLeakage(no_gap, 0.1).vacuous);
  EXPECT_EQ(CertifiedEpsilon(no_gap, 0.1), 0);

  const SupportGeometry one_atom{1, 1, kInfinity, 0, 0};
  EXPECT_EQ(CertifyLeakage(one_atom, 5).bound, 0);
  EXPECT_EQ(CertifiedEpsilon(one_atom, 0.01), kInfinity);
}

// What the certificates claim, against the exact solution; where the paper's c = 1 fails is the
// reason why it is not among them.
TEST(Leakage, CertifiedBoundsHoldForTheProjection) {
  Rng rng(1);
  int n_exponential = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const auto n = static_cast<int64_t>(2 + rng.Below(12));
    const auto dim = static_cast<int64_t>(1 + rng.Below(4));
    std::vector<double> atoms;
    std::vector<double> query;
    for (int64_t i = 0; i < n * dim; ++i) atoms.push_back(rng.Normal());
    for (int64_t d = 0; d < dim; ++d) query.push_back(4 * rng.Normal());
    const TensorView<const double, 2> view{atoms.data(), {n, dim}};
    const auto projection = reference::ProjectOntoHull(view, query);
    const SupportGeometry geometry{n, std::ssize(projection.support), projection.support_gap,
                                   reference::HullDiameter(view),
                                   reference::Entropy(projection.weights)};
    const double sufficient = std::isfinite(SufficientEpsilon(geometry)) && geometry.gap > 0
                                  ? SufficientEpsilon(geometry)
                                  : 1.0;
    for (double eps : {1.0, 0.1, 0.99 * sufficient}) {
      if (eps < 1e-5) continue;
      const auto solution = reference::SolveEntropic(view, query, eps);
      double leak = 0;
      for (int64_t j = 0; j < n; ++j) {
        if (projection.weights[j] == 0) leak += solution.weights[j];
      }
      const CertifiedLeakage certified = CertifyLeakage(geometry, eps);
      n_exponential += certified.exponential ? 1 : 0;
      // exp(x) of an x that is off by D·1e-12/ε at the smallest ε.
      EXPECT_LE(leak, certified.bound * (1 + 1e-6) + 1e-12);
      double square = 0;
      for (int64_t d = 0; d < dim; ++d) {
        square += std::pow(solution.readout[d] - projection.readout[d], 2);
      }
      EXPECT_LE(std::sqrt(square), UnconditionalReadoutError(geometry, eps) + 1e-9);
    }
  }
  EXPECT_GT(n_exponential, 20);
}

TEST(Leakage, CertifiedEpsilonDeliversItsLeakage) {
  Rng rng(2);
  for (int trial = 0; trial < 200; ++trial) {
    const auto n = static_cast<int64_t>(2 + rng.Below(1000));
    const SupportGeometry geometry{n, static_cast<int64_t>(1 + rng.Below(n)), rng.Uniform(),
                                   1 + rng.Uniform(), 0};
    for (double leakage : {0.3, 1e-3, 1e-9}) {
      const double eps = CertifiedEpsilon(geometry, leakage);
      ASSERT_GT(eps, 0);
      EXPECT_LE(CertifyLeakage(geometry, eps).bound, leakage * (1 + 1e-12));
    }
  }
}

TEST(SoftmaxLeakage, BoundsHoldForAnySet) {
  Rng rng(3);
  for (int trial = 0; trial < 500; ++trial) {
    const size_t n = 1 + rng.Below(20);
    std::vector<double> scores;
    bool in_set[20] = {};
    for (size_t j = 0; j < n; ++j) {
      scores.push_back(5 * rng.Normal());
      in_set[j] = rng.Uniform() < 0.5;
    }
    in_set[rng.Below(n)] = true;
    const SoftmaxLeakage bound = BoundSoftmaxLeakage(scores, {in_set, n}, 0.5);
    EXPECT_LE(bound.leak, bound.tight * (1 + 1e-14));
    EXPECT_LE(bound.tight, bound.paper_form * (1 + 1e-14));
  }
}

TEST(SoftmaxLeakage, EverythingInside) {
  const bool in_set[2] = {true, true};
  const SoftmaxLeakage bound = BoundSoftmaxLeakage(std::vector<double>{1, 4}, in_set, 1);
  EXPECT_EQ(bound.leak, 0);
  EXPECT_EQ(bound.tight, 0);
  EXPECT_EQ(bound.paper_form, 0);
  EXPECT_EQ(bound.score_gap, 3);
}

TEST(SoftmaxLeakage, EverythingLeaksWhereTheSetIsFarBelow) {
  const bool in_set[2] = {true, false};
  const SoftmaxLeakage bound = BoundSoftmaxLeakage(std::vector<double>{0, 1e6}, in_set, 1);
  EXPECT_EQ(bound.leak, 1);
  EXPECT_EQ(bound.tight, kInfinity);
}

}  // namespace
}  // namespace winnow
