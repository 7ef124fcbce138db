#include "policy/solver/candidate_solver.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "ops/reference_hull.h"
#include "ops/reference_vashista.h"

namespace winnow {
namespace {

struct Problem {
  Problem(uint64_t seed, int64_t n, int64_t dim, double reach) : atoms(n * dim), query(dim) {
    Rng rng(seed);
    for (double& x : atoms) x = rng.Normal();
    for (double& x : query) x = reach * rng.Normal();
  }
  HullProblem View() const {
    const auto dim = std::ssize(query);
    return {{atoms.data(), {std::ssize(atoms) / dim, dim}}, query};
  }
  std::vector<double> atoms, query;
};

// The optimum itself, by another algorithm, has at most the leakage that ε was chosen for.
TEST(EpsilonForProblem, KeepsTheLeakageBelowWhatWasAsked) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    // Far enough for the query to lie outside of the hull.
    const Problem problem(seed, 20, 4, 5);
    const reference::HullProjection projection =
        reference::ProjectOntoHull(problem.View().atoms, problem.query);
    for (const double leakage : {0.5, 0.1, 1e-3}) {
      const double eps = EpsilonForProblem(problem.View(), leakage);
      ASSERT_GT(eps, 0);
      const reference::EntropicSolution solution =
          reference::SolveEntropic(problem.View().atoms, problem.query, eps);
      double inside = 0;
      for (int64_t j : projection.support) inside += solution.weights[j];
      EXPECT_LE(1 - inside, leakage + 1e-9) << seed;
    }
    EXPECT_GE(EpsilonForProblem(problem.View(), 0.5), EpsilonForProblem(problem.View(), 0.01));
  }
}

TEST(EpsilonForProblem, OneAtomTakesAnyAndATieTakesNone) {
  const Problem one(1, 1, 3, 1);
  EXPECT_EQ(EpsilonForProblem(one.View(), 0.1), 1);
  // Twice the same atom: one of them suffices, and the other is no further from the query.
  Problem tie(2, 2, 3, 1);
  std::copy_n(tie.atoms.begin(), 3, tie.atoms.begin() + 3);
  EXPECT_EQ(EpsilonForProblem(tie.View(), 0.1), 0);
}

TEST(SolveCandidates, GivesWeightsOfTheProblemItNames) {
  const Problem problem(3, 30, 8, 1.5);
  const reference::HullProjection projection =
      reference::ProjectOntoHull(problem.View().atoms, problem.query);
  const reference::EntropicSolution entropic =
      reference::SolveEntropic(problem.View().atoms, problem.query, 0.7);
  SolverScratch scratch;
  std::vector<double> weights(30);
  const auto distance = [&](const std::vector<double>& optimum) {
    double squares = 0;
    for (int d = 0; d < 8; ++d) {
      double y = 0;
      for (int j = 0; j < 30; ++j) y += weights[j] * problem.atoms[j * 8 + d];
      squares += (y - optimum[d]) * (y - optimum[d]);
    }
    return std::sqrt(squares);
  };
  const CandidateSolution fw = SolveCandidates(
      problem.View(), {.kind = SolverKind::kFrankWolfe, .iterations = 40}, scratch, weights);
  EXPECT_LE(distance(projection.readout), fw.result.distance_bound + 1e-12);
  EXPECT_EQ(fw.eps, 0);
  const CandidateSolution eg =
      SolveCandidates(problem.View(), {.kind = SolverKind::kEntropic, .iterations = 40, .eps = 0.7},
                      scratch, weights);
  EXPECT_LE(distance(entropic.readout), eg.result.distance_bound + 1e-9);
  EXPECT_EQ(eg.eps, 0.7);
  EXPECT_EQ(eg.result.iterations, 40);
}

TEST(SolveCandidates, WhatIsNotFiniteIsSaidToBe) {
  Problem problem(4, 5, 3, 1);
  problem.atoms[7] = std::numeric_limits<double>::quiet_NaN();
  SolverScratch scratch;
  std::vector<double> weights(5);
  for (const SolverOptions& options :
       {SolverOptions{.kind = SolverKind::kFrankWolfe},
        SolverOptions{.kind = SolverKind::kEntropic},
        SolverOptions{.kind = SolverKind::kEntropic, .leakage = 0.1}}) {
    EXPECT_EQ(SolveCandidates(problem.View(), options, scratch, weights).result.status,
              SolverStatus::kNotFinite);
  }
}

TEST(ParseSolver, ReadsParametersAndRefusesContradictions) {
  const auto parse = [](const std::string& name,
                        const std::vector<std::pair<std::string, std::string>>& values = {}) {
    Params params("solver=" + name);
    for (const auto& [key, value] : values) params.Set(key, value);
    const SolverOptions options = ParseSolver(name, params);
    params.Finish();
    return options;
  };
  EXPECT_FALSE(parse("softmax").projects());
  EXPECT_EQ(parse("fw", {{"iters", "3"}}).iterations, 3);
  EXPECT_EQ(parse("eg", {{"eps", "0.25"}}).eps, 0.25);
  EXPECT_EQ(parse("eg", {{"leakage", "0.25"}}).leakage, 0.25);
  EXPECT_THROW(parse("softmax", {{"eps", "1"}}), Error);
  EXPECT_THROW(parse("fw", {{"eps", "1"}}), Error);
  EXPECT_THROW(parse("eg", {{"eps", "1"}, {"leakage", "0.1"}}), Error);
  EXPECT_THROW(parse("eg", {{"eps", "0"}}), Error);
  EXPECT_THROW(parse("eg", {{"leakage", "0"}}), Error);
  EXPECT_THROW(parse("eg", {{"iters", "-1"}}), Error);
  EXPECT_THROW(parse("newton"), Error);
}

}  // namespace
}  // namespace winnow
