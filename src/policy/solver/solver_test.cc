#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "ops/reference_hull.h"
#include "ops/reference_vashista.h"
#include "policy/solver/exponentiated_gradient.h"
#include "policy/solver/frank_wolfe.h"
#include "policy/solver/gaps.h"
#include "policy/solver/softmax.h"

namespace winnow {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Instance {
  int64_t n_atoms = 0;
  int64_t dim = 0;
  std::vector<double> atoms;
  std::vector<double> query;

  HullProblem Problem() const { return {{atoms.data(), {n_atoms, dim}}, query}; }
  double* Atom(int64_t j) { return atoms.data() + j * dim; }
};

Instance RandomInstance(Rng& rng, int64_t n_atoms, int64_t dim, double query_scale = 3) {
  Instance instance{n_atoms, dim, {}, {}};
  for (int64_t i = 0; i < n_atoms * dim; ++i) instance.atoms.push_back(rng.Normal());
  for (int64_t d = 0; d < dim; ++d) instance.query.push_back(query_scale * rng.Normal());
  return instance;
}

Instance RandomShape(Rng& rng) {
  return RandomInstance(rng, 1 + static_cast<int64_t>(rng.Below(40)),
                        1 + static_cast<int64_t>(rng.Below(12)));
}

std::vector<double> Readout(const Instance& instance, std::span<const double> weights) {
  SolverScratch scratch;
  EvaluateWeights(instance.Problem(), weights, scratch);
  return scratch.readout;
}

double Distance(std::span<const double> a, std::span<const double> b) {
  double square = 0;
  for (size_t d = 0; d < a.size(); ++d) square += (a[d] - b[d]) * (a[d] - b[d]);
  return std::sqrt(square);
}

double Objective(const Instance& instance, std::span<const double> weights) {
  const double distance = Distance(Readout(instance, weights), instance.query);
  return distance * distance / 2;
}

struct Solved {
  SolverResult result;
  std::vector<double> weights;
  SolverTrace trace;
};

Solved RunFw(const Instance& instance, FrankWolfeOptions options) {
  Solved solved{{}, std::vector<double>(instance.n_atoms), {}};
  SolverScratch scratch;
  solved.result = FrankWolfe(instance.Problem(), options, scratch, solved.weights, &solved.trace);
  return solved;
}

Solved RunEg(const Instance& instance, ExponentiatedGradientOptions options) {
  Solved solved{{}, std::vector<double>(instance.n_atoms), {}};
  SolverScratch scratch;
  solved.result =
      ExponentiatedGradient(instance.Problem(), options, scratch, solved.weights, &solved.trace);
  return solved;
}

void ExpectOnSimplex(std::span<const double> weights) {
  double sum = 0;
  for (double weight : weights) {
    EXPECT_GE(weight, 0);
    sum += weight;
  }
  // Normalisation and up to 200 steps of two roundings each.
  EXPECT_NEAR(sum, 1, 1e-13);
}

TEST(Solvers, WeightsStayOnTheSimplex) {
  Rng rng(1);
  for (int trial = 0; trial < 100; ++trial) {
    const Instance instance = RandomShape(rng);
    for (int iterations : {0, 1, 7, 100}) {
      ExpectOnSimplex(RunFw(instance, {iterations}).weights);
      ExpectOnSimplex(RunFw(instance, {iterations, 0.0, FrankWolfeStep::kClassic}).weights);
      ExpectOnSimplex(RunEg(instance, {0.1, iterations}).weights);
      ExpectOnSimplex(RunEg(instance, {0.0, iterations}).weights);
    }
  }
}

TEST(FrankWolfe, LineSearchNeverRaisesTheObjective) {
  Rng rng(2);
  for (int trial = 0; trial < 50; ++trial) {
    const Instance instance = RandomShape(rng);
    double last = kInfinity;
    for (int iterations = 0; iterations < 20; ++iterations) {
      const double objective = Objective(instance, RunFw(instance, {iterations}).weights);
      EXPECT_LE(objective, last * (1 + 1e-13));  // the rounding of one evaluation
      last = objective;
    }
  }
}

TEST(FrankWolfe, BoundsItsDistanceToTheProjection) {
  Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    const Instance instance = RandomShape(rng);
    const auto exact = reference::ProjectOntoHull(instance.Problem().atoms, instance.query);
    for (int iterations : {0, 1, 3, 12, 100}) {
      const Solved solved = RunFw(instance, {iterations});
      // 1e-7 = √(1e-14), what rounding of a converged gap leaves of its square root.
      EXPECT_LE(Distance(Readout(instance, solved.weights), exact.readout),
                solved.result.distance_bound + 1e-7);
      EXPECT_LE(solved.result.iterations, iterations);
      const auto n_used = std::count_if(solved.weights.begin(), solved.weights.end(),
                                        [](double weight) { return weight > 0; });
      EXPECT_LE(n_used, solved.result.iterations + 1);
    }
  }
}

TEST(ExponentiatedGradient, BoundsItsDistanceToTheEntropicProjection) {
  Rng rng(4);
  for (int trial = 0; trial < 200; ++trial) {
    const Instance instance = RandomShape(rng);
    const double eps = std::exp(-3 * rng.Uniform());
    const auto exact = reference::SolveEntropic(instance.Problem().atoms, instance.query, eps);
    for (int iterations : {0, 1, 3, 12, 200}) {
      const Solved solved = RunEg(instance, {eps, iterations});
      EXPECT_LE(Distance(Readout(instance, solved.weights), exact.readout),
                solved.result.distance_bound + 1e-7);
    }
  }
}

// One value row per atom: ‖Σ α_j v_j − Σ α_ε,j v_j‖ <= rad(V)·√(2G/ε), with rad(V) taken about the
// mean value (the bound holds for any centre).
TEST(ExponentiatedGradient, BoundsTheErrorOfValues) {
  Rng rng(5);
  for (int trial = 0; trial < 100; ++trial) {
    const Instance instance = RandomShape(rng);
    Instance values = RandomInstance(rng, instance.n_atoms, 5);
    const auto exact = reference::SolveEntropic(instance.Problem().atoms, instance.query, 0.3);
    const double radius = MeanRadius(values.Problem().atoms);
    for (int iterations : {0, 2, 12}) {
      const Solved solved = RunEg(instance, {0.3, iterations});
      EXPECT_LE(Distance(Readout(values, solved.weights), Readout(values, exact.weights)),
                EntropicValueBound(solved.result.gap, 0.3, radius) + 1e-7);
    }
  }
}

TEST(ExponentiatedGradient, ConvergesToTheEntropicProjection) {
  Rng rng(6);
  for (int trial = 0; trial < 30; ++trial) {
    const Instance instance = RandomInstance(rng, 12, 4);
    const Solved solved = RunEg(instance, {1.0, 5000, 1e-15});
    const auto exact = reference::SolveEntropic(instance.Problem().atoms, instance.query, 1.0);
    EXPECT_EQ(solved.result.status, SolverStatus::kConverged);
    // G <= 1e-15 and the inequality of Pinsker: ‖α − α_ε‖ <= √(2·1e-15/ε).
    for (size_t j = 0; j < exact.weights.size(); ++j) {
      EXPECT_NEAR(solved.weights[j], exact.weights[j], 1e-7);
    }
  }
}

TEST(Solvers, PermutedAtomsPermuteTheWeights) {
  Rng rng(7);
  for (int trial = 0; trial < 30; ++trial) {
    Instance instance = RandomInstance(rng, 15, 4);
    std::vector<int64_t> order(15);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
    Instance permuted = instance;
    for (int64_t j = 0; j < 15; ++j) std::copy_n(instance.Atom(order[j]), 4, permuted.Atom(j));
    const Solved fw = RunFw(instance, {8});
    const Solved fw_permuted = RunFw(permuted, {8});
    const Solved eg = RunEg(instance, {0.2, 30});
    const Solved eg_permuted = RunEg(permuted, {0.2, 30});
    // Only the order of sums differs; each step may carry that rounding on.
    for (int64_t j = 0; j < 15; ++j) {
      EXPECT_NEAR(fw_permuted.weights[j], fw.weights[order[j]], 1e-11);
      EXPECT_NEAR(eg_permuted.weights[j], eg.weights[order[j]], 1e-11);
    }
  }
}

TEST(Solvers, EqualAtomsShareOrTheFirstWins) {
  Instance instance{4, 2, {1, 0, 0, 1, 1, 0, 0, 1}, {3, 2}};
  const Solved eg = RunEg(instance, {0.5, 20});
  EXPECT_EQ(eg.weights[0], eg.weights[2]);
  EXPECT_EQ(eg.weights[1], eg.weights[3]);
  EXPECT_GT(eg.weights[0], eg.weights[1]);
  const Solved fw = RunFw(instance, {20});
  EXPECT_GT(fw.weights[0], 0);
  EXPECT_EQ(fw.weights[2], 0);
  EXPECT_EQ(fw.weights[3], 0);
}

TEST(Solvers, OneAtomIsTheAnswer) {
  const Instance instance{1, 3, {1, 2, 3}, {-5, 0, 7}};
  for (const Solved& solved :
       {RunFw(instance, {10}), RunEg(instance, {0.5, 10}), RunEg(instance, {0.0, 10})}) {
    EXPECT_EQ(solved.weights, std::vector<double>{1.0});
    EXPECT_EQ(solved.result.status, SolverStatus::kConverged);
    EXPECT_EQ(solved.result.iterations, 0);
    EXPECT_EQ(solved.result.gap, 0);
  }
}

TEST(Solvers, HullOfZeroDiameterEndsAtOnce) {
  const Instance instance{3, 2, {1, 2, 1, 2, 1, 2}, {4, -1}};
  for (const Solved& solved :
       {RunFw(instance, {10}), RunEg(instance, {0.5, 10, 1e-14}), RunEg(instance, {0.0, 10})}) {
    EXPECT_EQ(solved.result.status, SolverStatus::kConverged);
    EXPECT_EQ(solved.result.iterations, 0);
    EXPECT_NEAR(solved.result.gap, 0, 1e-14);
    ExpectOnSimplex(solved.weights);
  }
}

TEST(Solvers, HugeNormsStayFiniteOrAreReported) {
  Rng rng(8);
  for (double scale : {1e6, 1e30, 1e100, 1e160, 1e300}) {
    Instance instance = RandomInstance(rng, 10, 4);
    for (double& value : instance.atoms) value *= scale;
    for (const Solved& solved :
         {RunFw(instance, {20}), RunEg(instance, {1.0, 20}), RunEg(instance, {0.0, 20})}) {
      if (solved.result.status == SolverStatus::kNotFinite) {
        EXPECT_GE(scale, 1e160);  // only where squares overflow
        EXPECT_EQ(solved.result.gap, kInfinity);
        EXPECT_TRUE(std::isnan(solved.weights[0]));
      } else {
        ExpectOnSimplex(solved.weights);
        EXPECT_TRUE(std::isfinite(solved.result.gap));
      }
    }
  }
}

TEST(Solvers, NotFiniteInputIsReportedAtOnce) {
  Rng rng(9);
  for (double bad : {kNaN, kInfinity, -kInfinity}) {
    for (int where = 0; where < 4; ++where) {
      Instance instance = RandomInstance(rng, 6, 3);
      if (where == 3) {
        instance.query[1] = bad;
      } else {
        instance.Atom(where * 2)[1] = bad;
      }
      for (const Solved& solved : {RunFw(instance, {1000000}), RunEg(instance, {0.5, 1000000}),
                                   RunEg(instance, {0.0, 1000000})}) {
        EXPECT_EQ(solved.result.status, SolverStatus::kNotFinite);
        EXPECT_LE(solved.result.iterations, 1);
        EXPECT_EQ(solved.result.gap, kInfinity);
        EXPECT_EQ(solved.result.distance_bound, kInfinity);
        EXPECT_TRUE(std::isnan(solved.weights[0]));
      }
    }
  }
}

TEST(Solvers, StopAtTheTolerance) {
  Rng rng(10);
  const Instance instance = RandomInstance(rng, 20, 4, /*query_scale=*/0.1);  // within the hull
  for (const Solved& solved :
       {RunFw(instance, {100000, 1e-3}), RunEg(instance, {0.5, 1000, 1e-3})}) {
    EXPECT_EQ(solved.result.status, SolverStatus::kConverged);
    EXPECT_LE(solved.result.gap, 1e-3);
    EXPECT_EQ(std::ssize(solved.trace.gaps), solved.result.iterations + 1);
    ASSERT_GT(solved.result.iterations, 0);
    EXPECT_GT(solved.trace.gaps[solved.result.iterations - 1], 1e-3);
  }
}

TEST(Solvers, ScratchOfALargerProblemDoesNotMatter) {
  Rng rng(11);
  const Instance large = RandomInstance(rng, 30, 9);
  const Instance small = RandomInstance(rng, 4, 2);
  SolverScratch scratch;
  std::vector<double> weights(30);
  FrankWolfe(large.Problem(), {5}, scratch, weights);
  weights.resize(4);
  FrankWolfe(small.Problem(), {5}, scratch, weights);
  EXPECT_EQ(weights, RunFw(small, {5}).weights);
  ExponentiatedGradient(small.Problem(), {1.0, 5}, scratch, weights);
  EXPECT_EQ(weights, RunEg(small, {1.0, 5}).weights);
}

TEST(Softmax, WeightsAreTheModelsOwn) {
  std::vector<double> weights(3);
  const SolverResult result =
      SoftmaxWeights(std::vector<double>{1000, 1001, -kInfinity}, 1, weights);
  EXPECT_EQ(result.status, SolverStatus::kConverged);
  EXPECT_EQ(result.gap, 0);
  EXPECT_NEAR(weights[1] / weights[0], std::exp(1.0), 1e-14);
  EXPECT_EQ(weights[2], 0);
}

TEST(Softmax, NotFiniteScoresAreReported) {
  std::vector<double> weights(2);
  for (const std::vector<double>& scores :
       {std::vector<double>{0, kNaN}, {kNaN, 0}, {0, kInfinity}, {-kInfinity, -kInfinity}}) {
    EXPECT_EQ(SoftmaxWeights(scores, 1, weights).status, SolverStatus::kNotFinite);
    EXPECT_TRUE(std::isnan(weights[0]));
  }
}

TEST(Gaps, OfAPointMassOffTheOptimumIsPositive) {
  const std::vector<double> scores{1, 3};
  EXPECT_EQ(FrankWolfeGap(scores, std::vector<double>{1, 0}), 2);
  EXPECT_EQ(FrankWolfeGap(scores, std::vector<double>{0, 1}), 0);
  // KL of a point mass to softmax(1, 3) is log(1 + e²).
  EXPECT_NEAR(EntropicGap(scores, std::vector<double>{0, -kInfinity}, 1), std::log1p(std::exp(2.0)),
              1e-15);
}

}  // namespace
}  // namespace winnow
