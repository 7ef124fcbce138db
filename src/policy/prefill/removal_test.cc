#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "core/rng.h"
#include "policy/prefill/dual_bound.h"
#include "policy/prefill/exhaustive_removal.h"
#include "policy/prefill/feasible_scan.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Random masses of k chunks in some rows, with tolerances; owns what the rows point to.
struct RandomScreening {
  RandomScreening(Rng& rng, int n_chunks, int n_rows) : mass(n_chunks * n_rows) {
    for (double& m : mass) m = rng.Below(8) == 0 ? 0 : rng.Uniform() / n_chunks;
    for (int a = 0; a < n_rows; ++a) {
      rows.push_back({mass.data() + a * n_chunks, rng.Below(10) == 0 ? 0 : 0.6 * rng.Uniform()});
    }
    for (int i = 0; i < n_chunks; ++i) {
      tokens.push_back(1 + static_cast<int64_t>(rng.Below(60)));
      score.push_back(rng.Normal());
    }
    min_chunks = static_cast<int64_t>(rng.Below(n_chunks + 1));
  }
  ScreeningProblem problem() const { return {tokens, rows, min_chunks}; }
  ScanRequest request(int64_t target) const {
    return {.score = score,
            .chunk_tokens = tokens,
            .rows = rows,
            .min_chunks = min_chunks,
            .target_saving = target};
  }

  std::vector<double> mass;
  std::vector<ConstraintRow> rows;
  std::vector<int64_t> tokens;
  std::vector<double> score;
  int64_t min_chunks = 0;
};

TEST(FeasibleScan, KeepsEveryConstraintAndStopsAtTheTarget) {
  Rng rng(1);
  for (int trial = 0; trial < 300; ++trial) {
    const RandomScreening screening(rng, 1 + static_cast<int>(rng.Below(12)), 5);
    const auto target = static_cast<int64_t>(rng.Below(300));
    const ScanResult scan = FeasibleScan(screening.request(target));
    EXPECT_LE(std::ssize(scan.removed), std::ssize(screening.tokens) - screening.min_chunks);
    for (const ConstraintRow& row : screening.rows) {
      double mass = 0;
      for (const int32_t chunk : scan.removed) mass += row.mass[chunk];
      EXPECT_LE(mass, row.eps);
    }
    EXPECT_EQ(scan.target_met, scan.saving >= target);
    if (!scan.removed.empty()) {
      EXPECT_LT(scan.saving - screening.tokens[scan.removed.back()], target);
    }
  }
}

TEST(FeasibleScan, TiesAreSettledByTheQuantumThenSizeThenIndex) {
  const std::vector<int64_t> tokens = {2, 5, 5, 2};
  ScanRequest request{.score = {}, .chunk_tokens = tokens, .rows = {}, .target_saving = 100};
  const std::vector<double> noise = {1e-12, -2e-12, 0, 3e-12};
  request.score = noise;
  EXPECT_THAT(FeasibleScan(request).order, ElementsAre(1, 2, 0, 3));
  request.tie_quantum = 0;
  EXPECT_THAT(FeasibleScan(request).order, ElementsAre(1, 2, 0, 3));
  const std::vector<double> other_noise = {1e-12, 0, -2e-12, 3e-12};
  request.score = other_noise;
  EXPECT_THAT(FeasibleScan(request).order, ElementsAre(2, 1, 0, 3));
}

TEST(FeasibleScan, NoTargetNoChunksAndNoToleranceRemoveNothing) {
  EXPECT_THAT(FeasibleScan({.target_saving = 5}).removed, IsEmpty());
  const std::vector<int64_t> tokens = {3, 4};
  const std::vector<double> score = {0, 0};
  const std::vector<double> mass = {0.1, 0};
  const std::vector<ConstraintRow> rows = {{mass.data(), 0}};
  ScanRequest request{.score = score, .chunk_tokens = tokens, .rows = rows, .target_saving = 7};
  EXPECT_THAT(FeasibleScan(request).removed, ElementsAre(1));  // of exactly no mass
  request.target_saving = 0;
  EXPECT_THAT(FeasibleScan(request).removed, IsEmpty());
  request.target_saving = -3;
  EXPECT_TRUE(FeasibleScan(request).target_met);
}

TEST(FeasibleScan, ReorderedEqualChunksSaveTheSame) {
  Rng rng(2);
  for (int trial = 0; trial < 50; ++trial) {
    // Equal sizes and scores; masses trade places with their chunks.
    const std::vector<int64_t> tokens(7, 10);
    const std::vector<double> score(7, 0.25);
    const std::vector<double> mass(7, 0.125);
    const std::vector<ConstraintRow> rows = {{mass.data(), rng.Uniform()}};
    const ScanResult scan =
        FeasibleScan({.score = score, .chunk_tokens = tokens, .rows = rows, .target_saving = 1000});
    EXPECT_EQ(std::ssize(scan.removed), std::min<int64_t>(7, std::floor(rows[0].eps / 0.125)));
    std::vector<int32_t> first(scan.removed.size());
    std::iota(first.begin(), first.end(), 0);
    EXPECT_EQ(scan.removed, first);
  }
}

TEST(FeasibleScan, TwoThousandChunks) {
  Rng rng(3);
  const RandomScreening screening(rng, 2000, 20);
  const ScanResult scan = FeasibleScan(screening.request(20'000));
  EXPECT_LE(scan.saving, BoundBySinglePrices(screening.problem()).WholeTokens());
}

// Theorem 4.3, for prices of every kind.
TEST(DualBound, IsNeverBelowTheExactOptimum) {
  Rng rng(4);
  int exact = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const RandomScreening screening(rng, 1 + static_cast<int>(rng.Below(10)), 4);
    const ScreeningProblem problem = screening.problem();
    const int64_t best = BestSaving(problem);
    const ScanResult scan = FeasibleScan(screening.request(1'000'000));
    EXPECT_LE(scan.saving, best);
    const DualBound single = BoundBySinglePrices(problem);
    const DualBound program = BoundByLinearProgram(problem);
    EXPECT_GE(single.WholeTokens(), best);
    EXPECT_GE(program.WholeTokens(), best);
    EXPECT_LE(program.tokens, single.tokens);
    EXPECT_FALSE(single.Excludes(best));
    EXPECT_FALSE(program.Excludes(best));
    exact += program.WholeTokens() == best ? 1 : 0;
    for (int draw = 0; draw < 5; ++draw) {
      std::vector<double> prices(screening.rows.size());
      for (double& price : prices) price = rng.Below(3) == 0 ? 0 : 200 * rng.Uniform();
      const DualBound any{.tokens = EvaluatePrices(problem, prices, 20 * rng.Uniform())};
      EXPECT_GE(any.WholeTokens(), best);
      // No prices are better than the linear program's; CLP solves to 1e-9.
      EXPECT_GE(any.tokens, program.tokens * (1 - 1e-7) - 1e-12);
    }
  }
  EXPECT_GT(exact, 100);  // and it is often as good as it can be
}

TEST(DualBound, SinglePricesAreTheBestOfTheirKind) {
  Rng rng(5);
  for (int trial = 0; trial < 200; ++trial) {
    const RandomScreening screening(rng, 1 + static_cast<int>(rng.Below(15)), 1);
    ScreeningProblem problem = screening.problem();
    problem.min_chunks = 0;
    const DualBound single = BoundBySinglePrices(problem);
    for (int step = 0; step < 200; ++step) {
      const std::vector<double> price = {step * 5.0};
      // n − (n/m)·m leaves some 1e-16 of a chunk's tokens, at most 60 in each of 15.
      EXPECT_GE(EvaluatePrices(problem, price, 0), single.tokens - 1e-12);
    }
    if (single.price_row == 0) {
      const std::vector<double> price = {single.price};
      EXPECT_NEAR(EvaluatePrices(problem, price, 0), single.tokens, 1e-12);
    }
  }
}

TEST(DualBound, ProvesThatATargetIsOutOfReach) {
  const std::vector<int64_t> tokens = {10, 10};
  const std::vector<double> mass = {0.5, 0.5};
  const std::vector<ConstraintRow> rows = {{mass.data(), 0.25}};
  const DualBound bound = BoundBySinglePrices({tokens, rows, 0});
  EXPECT_DOUBLE_EQ(bound.tokens, 5);  // half a chunk, by the relaxation
  EXPECT_EQ(bound.price_row, 0);
  EXPECT_TRUE(bound.Excludes(6));
  EXPECT_FALSE(bound.Excludes(5));
  EXPECT_DOUBLE_EQ(BoundBySinglePrices({tokens, rows, 2}).tokens, 0);
  EXPECT_DOUBLE_EQ(BoundByLinearProgram({{}, rows, 0}).tokens, 0);
}

}  // namespace
}  // namespace winnow
