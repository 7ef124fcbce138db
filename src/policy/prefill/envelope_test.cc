#include "policy/prefill/envelope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "policy/prefill/chunk_scores.h"
#include "policy/prefill/observed_rows.h"
#include "policy/prefill/prune_rows_test.h"

namespace winnow {
namespace {

// Sums of some 50 shares: below 1e-14; the square root of a χ² term that cancels costs half the
// digits of what is rounded away.
constexpr double kTolerance = 1e-7;

std::vector<uint8_t> RandomSet(Rng& rng, size_t n) {
  std::vector<uint8_t> set(n);
  for (uint8_t& flag : set) flag = rng.Below(3) == 0;
  return set;
}

// Theorem 4.1, for single rows and for head averages in the pool of (5).
TEST(Envelope, HoldsForEveryRowOfThePool) {
  Rng rng(1);
  for (int trial = 0; trial < 100; ++trial) {
    const PruneProblem problem = MakeProblem({.chunk_tokens = RandomChunks(rng, 5, 7)});
    const double zeta = 0.05 + 0.95 * rng.Uniform();
    const std::vector<double> rows = RandomRows(rng, problem, 4 * rng.Uniform());
    const ObservedRows observed(problem, rows);
    const ChunkScores scores =
        ScoreChunks(problem, observed.mean_attention(), {.tau = 0.3, .zeta = zeta}, {});
    const std::vector<uint8_t> set = RandomSet(rng, problem.n_tokens());
    const auto n = static_cast<size_t>(problem.n_tokens());
    for (int64_t h = 0; h < 4; ++h) {
      const DeletionEnvelope mean = EnvelopeOf({observed.mean_attention().row(h), n}, scores.pooled,
                                               scores.pool_share[h], set);
      EXPECT_LE(mean.removed, mean.bound + kTolerance);
      EXPECT_LE(mean.divergence, mean.divergence_cap + kTolerance);
      EXPECT_LE(mean.removed, WorstRowBound(mean.pooled_removed, 4, 1, zeta) + kTolerance);
      for (int64_t u = 0; u < problem.n_observers(); ++u) {
        const auto row = std::span(rows).subspan((h * problem.n_observers() + u) * n, n);
        const DeletionEnvelope one =
            EnvelopeOf(row, scores.pooled,
                       scores.pool_share[h] / static_cast<double>(problem.n_observers()), set);
        EXPECT_LE(one.removed, one.bound + kTolerance);
        EXPECT_LE(one.divergence, one.divergence_cap + kTolerance);
        EXPECT_LE(one.removed,
                  WorstRowBound(one.pooled_removed, 4, problem.n_observers(), zeta) + kTolerance);
      }
    }
  }
}

TEST(Envelope, IsSharp) {
  const std::vector<double> row = {1, 0, 0};
  const std::vector<double> pooled = {0.125, 0.5, 0.375};
  const DeletionEnvelope e = EnvelopeOf(row, pooled, 0.125, std::vector<uint8_t>{1, 0, 0});
  EXPECT_DOUBLE_EQ(e.removed, 1);
  EXPECT_DOUBLE_EQ(e.ratio_term, 1);
  EXPECT_DOUBLE_EQ(e.divergence_term, 1);
  EXPECT_DOUBLE_EQ(e.divergence, e.divergence_cap);
  EXPECT_THROW(EnvelopeOf(row, pooled, 0, std::vector<uint8_t>{1, 0, 0}), Error);
  EXPECT_THROW(EnvelopeOf(row, pooled, 0.5, std::vector<uint8_t>{1, 0}), Error);
}

// Lemma 4.2.
TEST(Envelope, ARemovalMovesTheOutputByAtMostTwiceItsMass) {
  Rng rng(2);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<double> row = RandomRow(rng, 20, 3 * rng.Uniform());
    std::vector<double> values(20 * 6);
    for (double& v : values) v = rng.Normal();
    const RowOutputChange change =
        OutputChangeOf(row, {values.data(), {20, 6}}, RandomSet(rng, 20));
    EXPECT_LE(change.error, change.bound + kTolerance);
  }
  // Equality: what goes and what stays have opposite values.
  const std::vector<double> row = {0.25, 0.75};
  const std::vector<double> values = {2, -2};
  const RowOutputChange change =
      OutputChangeOf(row, {values.data(), {2, 1}}, std::vector<uint8_t>{1, 0});
  EXPECT_DOUBLE_EQ(change.error, 1);
  EXPECT_DOUBLE_EQ(change.bound, 1);
  const RowOutputChange nothing =
      OutputChangeOf(row, {values.data(), {2, 1}}, std::vector<uint8_t>{1, 1});
  EXPECT_TRUE(std::isnan(nothing.error));  // nothing is retained
}

}  // namespace
}  // namespace winnow
