#include "ops/reference_vashista.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/rng.h"
#include "ops/reference_hull.h"

namespace winnow::reference {
namespace {

using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Instance {
  std::array<int64_t, 2> shape{};
  std::vector<double> atoms;
  std::vector<double> query;

  TensorView<const double, 2> Atoms() const { return {atoms.data(), shape}; }
};

Instance RandomInstance(Rng& rng, double query_scale) {
  Instance instance{
      {1 + static_cast<int64_t>(rng.Below(40)), 1 + static_cast<int64_t>(rng.Below(10))}, {}, {}};
  for (int64_t i = 0; i < instance.shape[0] * instance.shape[1]; ++i) {
    instance.atoms.push_back(rng.Normal());
  }
  for (int64_t d = 0; d < instance.shape[1]; ++d) {
    instance.query.push_back(query_scale * rng.Normal());
  }
  return instance;
}

double Norm(std::span<const double> x) {
  double square = 0;
  for (double value : x) square += value * value;
  return std::sqrt(square);
}

TEST(ProjectOntoHull, MeetsTheOptimalityConditions) {
  Rng rng(1);
  for (int trial = 0; trial < 400; ++trial) {
    // From deep inside the hull to far outside.
    const double query_scale = std::pow(10.0, 9 * rng.Uniform() - 3);
    const Instance instance = RandomInstance(rng, query_scale);
    const HullProjection p = ProjectOntoHull(instance.Atoms(), instance.query);
    double sum = 0;
    for (double weight : p.weights) {
      EXPECT_GE(weight, 0);
      sum += weight;
    }
    EXPECT_NEAR(sum, 1, 1e-13);
    // Scores are sums of up to 10 products of ‖r‖ and atoms of norm up to about 6.
    const double rounding = 1e-14 * (1 + Norm(p.residual));
    EXPECT_LE(p.frank_wolfe_gap, rounding);
    EXPECT_LE(std::ssize(p.support), instance.shape[1] + 1);
    for (int64_t j : p.support) EXPECT_LE(p.multipliers[j], 1e-9 * (1 + Norm(p.residual)));
  }
}

TEST(ProjectOntoHull, RepeatedAtomsAreNotUnique) {
  Instance instance{{3, 2}, {1, 0, 1, 0, 0, 5}, {3, -1}};
  HullProjection p = ProjectOntoHull(instance.Atoms(), instance.query);
  EXPECT_THAT(p.weights, ElementsAre(1, 0, 0));
  EXPECT_FALSE(p.weights_unique);
  EXPECT_EQ(p.support_gap, 0);
  EXPECT_THAT(p.exposed, ElementsAre(0, 1));
  EXPECT_EQ(p.tangent_curvature, kInfinity);

  instance.shape = {1, 2};
  p = ProjectOntoHull(instance.Atoms(), instance.query);
  EXPECT_TRUE(p.weights_unique);
  EXPECT_EQ(p.support_gap, kInfinity);
}

// The exposed atoms −1, 0, 1 are affinely dependent, yet the end point has only one representation.
TEST(ProjectOntoHull, EndOfADegenerateFaceIsUnique) {
  const Instance instance{{3, 2}, {-1, 0, 0, 0, 1, 0}, {1, 1}};
  const HullProjection p = ProjectOntoHull(instance.Atoms(), instance.query);
  EXPECT_THAT(p.support, ElementsAre(2));
  EXPECT_THAT(p.exposed, ElementsAre(0, 1, 2));
  EXPECT_TRUE(p.weights_unique);
  EXPECT_EQ(p.support_gap, 0);
  EXPECT_EQ(p.exposed_gap, kInfinity);
}

TEST(ProjectOntoHull, AllAtomsEqual) {
  const Instance instance{{3, 2}, {1, 2, 1, 2, 1, 2}, {4, 4}};
  const HullProjection p = ProjectOntoHull(instance.Atoms(), instance.query);
  EXPECT_THAT(p.readout, ElementsAre(1, 2));
  EXPECT_FALSE(p.weights_unique);
  EXPECT_EQ(HullDiameter(instance.Atoms()), 0);
}

TEST(SolveEntropic, SolvesTheFixedPoint) {
  Rng rng(2);
  for (int trial = 0; trial < 200; ++trial) {
    const Instance instance = RandomInstance(rng, std::pow(10.0, 3 * rng.Uniform() - 1));
    const double eps = std::pow(10.0, -4 * rng.Uniform());
    const EntropicSolution solution = SolveEntropic(instance.Atoms(), instance.query, eps);
    EXPECT_LE(solution.readout_error, 1e-12 * (1 + Norm(instance.query)));
    double sum = 0;
    for (double weight : solution.weights) sum += weight;
    EXPECT_NEAR(sum, 1, 1e-13);
    // No weights are better: the objective of α* is at least the optimum's.
    const HullProjection p = ProjectOntoHull(instance.Atoms(), instance.query);
    EXPECT_LE(solution.objective, std::pow(Norm(p.residual), 2) / 2 - eps * Entropy(p.weights) +
                                      1e-12 * (1 + std::pow(Norm(p.residual), 2)));
  }
}

TEST(SolveEntropic, TinyEpsilonKeepsLogWeightsFinite) {
  const Instance instance{{2, 1}, {0, 1}, {3}};
  const EntropicSolution solution = SolveEntropic(instance.Atoms(), instance.query, 1e-4);
  EXPECT_EQ(solution.weights[0], 0);  // exp(−20000)
  EXPECT_NEAR(1e-4 * solution.log_weights[0], -2, 1e-3);
}

TEST(SolveTwoAtoms, AgreesWithTheGeneralSolver) {
  for (double q : {-1.0, -0.1, 0.0, 0.2, 0.5, 1.0, 1.7}) {
    for (double eps : {1.0, 0.1, 0.02}) {
      const Instance instance{{2, 1}, {0, 1}, {q}};
      const EntropicSolution general = SolveEntropic(instance.Atoms(), instance.query, eps);
      const TwoAtomSolution two = SolveTwoAtoms(q, eps);
      // A logit that is off by 1e-15/ε.
      EXPECT_NEAR(two.entropic / general.weights[1], 1, 1e-12);
      EXPECT_EQ(two.projection, std::clamp(q, 0.0, 1.0));
    }
  }
}

TEST(GlobalFrankWolfeGap, BoundsTheDistanceToTheTrueProjection) {
  Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    const Instance instance = RandomInstance(rng, 3);
    const auto page_tokens = static_cast<int64_t>(1 + rng.Below(8));
    const int64_t n_pages = (instance.shape[0] + page_tokens - 1) / page_tokens;
    const GlobalGap gap =
        GlobalFrankWolfeGap(instance.Atoms(), instance.query, page_tokens,
                            static_cast<int64_t>(rng.Below(static_cast<uint64_t>(n_pages))));
    EXPECT_EQ(std::ssize(gap.page_upper), n_pages - 1);
    // 1e-7 = √(1e-14) where one page is all there is.
    EXPECT_LE(gap.distance, std::sqrt(std::max(0.0, gap.gap)) + 1e-7);
  }
}

TEST(PageScoreBound, CoversEveryKey) {
  Rng rng(4);
  for (int trial = 0; trial < 300; ++trial) {
    const Instance instance = RandomInstance(rng, 1);
    const double bound = PageScoreBound(instance.Atoms(), instance.query);
    for (int64_t j = 0; j < instance.shape[0]; ++j) {
      double score = 0;
      for (int64_t d = 0; d < instance.shape[1]; ++d) {
        score += instance.query[d] * instance.Atoms().row(j)[d];
      }
      EXPECT_LE(score, bound + 1e-13);
    }
  }
}

}  // namespace
}  // namespace winnow::reference
