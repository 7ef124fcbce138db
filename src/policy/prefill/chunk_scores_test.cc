#include "policy/prefill/chunk_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "core/error.h"
#include "policy/prefill/feasible_scan.h"
#include "policy/prefill/observed_rows.h"
#include "policy/prefill/prune_rows_test.h"

namespace winnow {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// Sums of at most 10^4 shares, each rounded once or twice: a few times 10^4 ulps of what is at
// most 1, before a logarithm that is taken of numbers around 1.
constexpr double kTolerance = 1e-11;

ChunkScores Score(const PruneProblem& problem, std::span<const double> rows,
                  const ScoreParams& params = {}, std::span<const double> weights = {}) {
  return ScoreChunks(problem, ObservedRows(problem, rows).mean_attention(), params, weights);
}

TEST(ChunkScores, PoolIsADistributionThatHoldsEachRow) {
  Rng rng(1);
  for (int trial = 0; trial < 50; ++trial) {
    const PruneProblem problem = MakeProblem({.chunk_tokens = RandomChunks(rng, 7, 12)});
    const ScoreParams params{.tau = 0.1 + rng.Uniform(), .zeta = 0.05 + 0.9 * rng.Uniform()};
    const std::vector<double> rows = RandomRows(rng, problem, 3 * rng.Uniform());
    const ChunkScores scores = Score(problem, rows, params);
    EXPECT_NEAR(std::accumulate(scores.pooled.begin(), scores.pooled.end(), 0.0), 1, kTolerance);
    EXPECT_NEAR(std::accumulate(scores.chunk_mass.begin(), scores.chunk_mass.end(), 0.0), 1,
                kTolerance);
    const auto n_tokens = static_cast<size_t>(problem.n_tokens());
    for (size_t r = 0; r < rows.size() / n_tokens; ++r) {
      const size_t head = r / problem.observers.size();
      const double omega = scores.pool_share[head] / static_cast<double>(problem.n_observers());
      // (5): ω >= ζ/(H·W), and μ >= ω·a.
      EXPECT_GE(omega * 4 * static_cast<double>(problem.n_observers()) * (1 + kTolerance),
                params.zeta);
      for (size_t j = 0; j < n_tokens; ++j) {
        EXPECT_GE(scores.pooled[j] + kTolerance, omega * rows[r * n_tokens + j]);
      }
    }
  }
}

// Proposition 3.1, (6): with s eligible heads of which the others' entropy is at least Δ more.
TEST(ChunkScores, EntropySeparatesHeadsDownToTheFloor) {
  Rng rng(2);
  for (int trial = 0; trial < 200; ++trial) {
    const PruneProblem problem =
        MakeProblem({.query_heads = 6, .kv_heads = 2, .chunk_tokens = RandomChunks(rng, 5, 9)});
    const ScoreParams params{
        .z_min = 1e-6, .tau = 0.05 + 2 * rng.Uniform(), .zeta = 0.05 + 0.9 * rng.Uniform()};
    const ChunkScores scores = Score(problem, RandomRows(rng, problem, 4 * rng.Uniform()), params);
    for (int g = 0; g < 2; ++g) {
      const auto first = scores.entropy.begin() + g * 3;
      const auto least = std::min_element(first, first + 3);
      double delta = std::numeric_limits<double>::infinity();
      for (auto it = first; it != first + 3; ++it) {
        if (it != least) delta = std::min(delta, *it - *least);
      }
      const double bound =
          params.zeta / 3 + (1 - params.zeta) / (1 + 2 * std::exp(-delta / params.tau));
      EXPECT_GE(scores.weight[least - scores.entropy.begin()], bound - kTolerance);
    }
  }
}

// Proposition 3.1, (7): an eligible head with an even residual beside a sibling of collision c0.
TEST(ChunkScores, ASinkHeadsWeightIsBounded) {
  for (const double tau : {0.25, 1.0, 4.0}) {
    PruneProblem problem = MakeProblem({.query_heads = 2, .kv_heads = 1, .observers = 1});
    const int64_t n = problem.n_tokens() - problem.n_sinks;
    std::vector<double> rows(2 * problem.n_tokens(), 0);
    rows[0] = 0.9;  // the sink's head
    for (int64_t j = 0; j < n; ++j) rows[problem.n_sinks + j] = 0.1 / static_cast<double>(n);
    rows[problem.n_tokens() + problem.n_sinks] = 0.8;
    rows[problem.n_tokens() + problem.n_sinks + 1] = 0.2;
    const ScoreParams params{.tau = tau, .zeta = 0.2};
    const ChunkScores scores = Score(problem, rows, params);
    const double sink = std::pow(static_cast<double>(n), -1 / tau);
    const double sibling = std::pow(scores.collision[1], 1 / tau);
    EXPECT_LE(scores.weight[0], 0.1 + 0.8 * sink / (sink + sibling) + kTolerance);
    EXPECT_GE(scores.weight[0], 0.1);  // never below the floor
  }
}

// Proposition 3.2.
TEST(ChunkScores, ConcentrationIsBoundedAndAnEvenSpreadScoresZero) {
  Rng rng(3);
  for (int trial = 0; trial < 100; ++trial) {
    const PruneProblem problem = MakeProblem({.chunk_tokens = RandomChunks(rng, 9, 15)});
    const ScoreParams params{.lambda = 3 * rng.Uniform()};
    const ChunkScores scores = Score(problem, RandomRows(rng, problem, 5 * rng.Uniform()), params);
    for (size_t i = 0; i < scores.score.size(); ++i) {
      EXPECT_GE(scores.concentration[i], 0);
      EXPECT_LE(scores.concentration[i], 1);
      if (problem.chunk_tokens[i] == 1) {
        EXPECT_EQ(scores.concentration[i], 0);
      }
      for (size_t j = 0; j < scores.score.size(); ++j) {  // (10)
        EXPECT_GE(scores.score[i] - scores.score[j],
                  std::log(scores.ratio[i] / scores.ratio[j]) - params.lambda - kTolerance);
      }
    }
    std::vector<double> even(problem.chunk_tokens.begin(), problem.chunk_tokens.end());
    const double total = std::accumulate(even.begin(), even.end(), 0.0);
    for (double& mass : even) mass *= 0.7 / total;
    EXPECT_THAT(Score(problem, RowsWithMass(problem, even), params).score,
                Each(testing::DoubleNear(0, kTolerance)));
  }
}

TEST(ChunkScores, EqualChunksMayTradePlaces) {
  Rng rng(4);
  const PruneProblem problem = MakeProblem({.chunk_tokens = std::vector<int64_t>(6, 4)});
  std::vector<double> rows = RandomRows(rng, problem, 2);
  const ChunkScores before = Score(problem, rows);
  // Chunks 1 and 4 of the same length, token by token.
  const auto first = [&](int chunk) {
    return std::find(problem.chunk_of.begin(), problem.chunk_of.end(), chunk) -
           problem.chunk_of.begin();
  };
  for (size_t row = 0; row < rows.size(); row += problem.n_tokens()) {
    std::swap_ranges(rows.begin() + row + first(1), rows.begin() + row + first(1) + 4,
                     rows.begin() + row + first(4));
  }
  const ChunkScores after = Score(problem, rows);
  for (const auto& [i, j] : {std::pair(1, 4), {4, 1}, {0, 0}, {5, 5}}) {
    EXPECT_NEAR(after.score[i], before.score[j], kTolerance);
    EXPECT_NEAR(after.chunk_mass[i], before.chunk_mass[j], kTolerance);
  }
}

TEST(ChunkScores, HeadWeightsMultiplyThePaperWeights) {
  Rng rng(5);
  const PruneProblem problem = MakeProblem({});
  const std::vector<double> rows = RandomRows(rng, problem, 2);
  const ChunkScores plain = Score(problem, rows);
  const ChunkScores twice = Score(problem, rows, {}, std::vector<double>(4, 2.0));
  EXPECT_THAT(twice.pool_share, testing::Pointwise(testing::DoubleEq(), plain.pool_share));
  const std::vector<double> one_head = {0, 0, 0.5, 0};
  const ChunkScores alone = Score(problem, rows, {}, one_head);
  EXPECT_THAT(alone.pool_share, ElementsAre(0, 0, 1, 0));
  EXPECT_EQ(alone.weight, plain.weight);
  const auto mean = ObservedRows(problem, rows);
  for (int64_t j = 0; j < problem.n_tokens(); ++j) {
    EXPECT_DOUBLE_EQ(alone.pooled[j], mean.mean_attention().row(2)[j]);
  }
  const std::vector<double> weighted = {1, 3, 0, 2};
  const ChunkScores some = Score(problem, rows, {}, weighted);
  const double sum = plain.weight[0] + 3 * plain.weight[1] + 2 * plain.weight[3];
  EXPECT_NEAR(some.pool_share[1], 3 * plain.weight[1] / sum, kTolerance);
}

TEST(ChunkScores, OnlyGroupsOfThePoolCanFallBack) {
  const PruneProblem problem = MakeProblem({.observers = 1});
  // Heads 0 and 1 see nothing but sinks.
  std::vector<double> rows = RowsWithMass(problem, std::vector<double>(5, 0.1));
  for (int64_t j = 0; j < 2 * problem.n_tokens(); ++j) rows[j] = j % problem.n_tokens() == 0;
  EXPECT_FALSE(Score(problem, rows).all_fallback);
  EXPECT_THAT(Score(problem, rows).group_fallback, ElementsAre(1, 0));
  const std::vector<double> first_group = {1, 0, 0, 0};
  EXPECT_TRUE(Score(problem, rows, {}, first_group).all_fallback);
}

TEST(ChunkScores, ANumberThatIsNoneIsFoundWhereverItIs) {
  Rng rng(6);
  const PruneProblem problem = MakeProblem({});
  const std::vector<double> rows = RandomRows(rng, problem, 1);
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const size_t at : {size_t{0}, rows.size() / 2, rows.size() - 1}) {
      std::vector<double> broken = rows;
      broken[at] = bad;
      EXPECT_FALSE(Score(problem, broken).finite) << at;
    }
  }
}

TEST(ChunkScores, ChunksOfEveryNumberAndSize) {
  Rng rng(7);
  for (const auto& chunks : {std::vector<int64_t>{1}, std::vector<int64_t>{40},
                             std::vector<int64_t>(2000, 1), RandomChunks(rng, 2000, 3)}) {
    const PruneProblem problem = MakeProblem({.chunk_tokens = chunks, .observers = 1});
    const ChunkScores scores = Score(problem, RandomRows(rng, problem, 1));
    ASSERT_TRUE(scores.enough_mass);
    EXPECT_EQ(scores.score.size(), chunks.size());
    EXPECT_THAT(scores.score, Each(testing::Truly([](double s) { return std::isfinite(s); })));
  }
  const PruneProblem none = MakeProblem({.chunk_tokens = {}});
  EXPECT_FALSE(Score(none, RandomRows(rng, none, 1)).enough_mass);
}

std::string Complaint(const PruneProblem& problem) {
  try {
    CheckProblem(problem);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "";
}

TEST(Chunks, ProblemsThatAreNoneAreRefused) {
  const PruneProblem good = MakeProblem({});
  EXPECT_EQ(Complaint(good), "");
  EXPECT_EQ(Complaint(MakeProblem({.chunk_tokens = {}, .observers = 0})), "");
  const auto broken = [&](auto change) {
    PruneProblem problem = good;
    change(problem);
    return Complaint(problem);
  };
  EXPECT_THAT(broken([](auto& p) { p.observers.clear(); }), HasSubstr("needs a question"));
  EXPECT_THAT(broken([](auto& p) { p.first_proposal = 4; }), HasSubstr("needs a question"));
  EXPECT_THAT(broken([](auto& p) { p.observers[0] = 3; }), HasSubstr("not after the documents"));
  EXPECT_THAT(broken([](auto& p) { p.observers[3] = p.n_tokens(); }), HasSubstr("outside"));
  EXPECT_THAT(broken([](auto& p) { std::swap(p.observers[1], p.observers[2]); }),
              HasSubstr("out of order"));
  EXPECT_THAT(broken([](auto& p) { p.chunk_tokens.push_back(0); }), HasSubstr("is empty"));
  EXPECT_THAT(broken([](auto& p) { p.chunk_tokens[0] = 4; }), HasSubstr("and has 5"));
  EXPECT_THAT(broken([](auto& p) { p.chunk_of[0] = 0; }), HasSubstr("sink"));
  EXPECT_THAT(broken([](auto& p) { p.chunk_of[4] = -1; }), HasSubstr("not contiguous"));
  EXPECT_THAT(broken([](auto& p) { p.chunk_of[4] = 9; }), HasSubstr("in chunk 9 of 5"));
  EXPECT_THAT(broken([](auto& p) { p.kv_heads = 3; }), HasSubstr("KV heads"));
}

TEST(Chunks, WhatStaysKeepsItsOrderAndEverythingProtected) {
  Rng rng(8);
  for (int trial = 0; trial < 50; ++trial) {
    const PruneProblem problem = MakeProblem({.chunk_tokens = RandomChunks(rng, 8, 6)});
    std::vector<uint8_t> removed(8);
    for (uint8_t& flag : removed) flag = rng.Below(2) != 0;
    const std::vector<int64_t> kept = RetainedPositions(problem, removed);
    EXPECT_THAT(std::adjacent_find(kept.begin(), kept.end(), std::greater_equal<>()), kept.end());
    size_t next = 0;
    for (int64_t at = 0; at < problem.n_tokens(); ++at) {
      const int32_t chunk = problem.chunk_of[at];
      const bool stays = chunk < 0 || removed[chunk] == 0;
      ASSERT_EQ(next < kept.size() && kept[next] == at, stays);
      next += stays ? 1 : 0;
    }
  }
}

TEST(Chunks, ProtectionTakesWholeChunks) {
  const std::vector<int32_t> raw = {-1, 0, 0, 1, 1, -1, 3, 3};
  const ProtectedChunks chunks = ProtectChunks(raw, std::vector<uint8_t>{1, 0, 0, 0, 1, 0, 0, 0});
  EXPECT_THAT(chunks.chunk_of, ElementsAre(-1, 0, 0, -1, -1, -1, 1, 1));
  EXPECT_THAT(chunks.kept, ElementsAre(0, 3));
  EXPECT_THAT(chunks.chunk_tokens, ElementsAre(2, 2));
  EXPECT_THROW(ProtectChunks(raw, std::vector<uint8_t>{1}), Error);
}

}  // namespace
}  // namespace winnow
