#include "eval/prune_tolerances.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/rng.h"

namespace winnow {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Le;

// Two heads, three observers of which the last two propose, four chunks.
PruneProblem SmallProblem() {
  PruneProblem problem{.query_heads = 2, .kv_heads = 1};
  problem.chunk_tokens = {10, 20, 30, 40};
  for (int32_t chunk = 0; chunk < 4; ++chunk) {
    problem.chunk_of.insert(problem.chunk_of.end(), 10 * (chunk + 1), chunk);
  }
  problem.chunk_of.insert(problem.chunk_of.end(), 3, -1);
  problem.observers = {100, 101, 102};
  problem.first_proposal = 1;
  return problem;
}

TEST(HeadLosses, AreSumsOverTheRemovedChunks) {
  const std::vector<double> mass = {0.9,  0.05, 0, 0,  //
                                    0.25, 0.25, 0, 0,  //
                                    0,    0.5,  0, 0,  //
                                    0,    0,    0, 0.3, 0, 0, 0, 0, 0, 0, 0, 0.6};
  const HeadLosses losses = HeadLosses::Of(SmallProblem(), mass, std::vector<int32_t>{0, 3});
  // The first observer counts for the mean alone.
  EXPECT_THAT(losses.worst_row, ElementsAre(0.25, 0.6));
  // Sums of three quotients: a few roundings of numbers below 1.
  EXPECT_THAT(losses.mean, ElementsAre(DoubleNear(1.15 / 3, 1e-15), DoubleNear(0.3, 1e-15)));
  EXPECT_TRUE(losses.Within(std::vector<double>{0.25, 0.6}, std::vector<double>{0.4, 0.31}));
  EXPECT_FALSE(losses.Within(std::vector<double>{0.24, 0.6}, std::vector<double>{0.4, 0.31}));
  EXPECT_FALSE(losses.Within(std::vector<double>{0.25, 0.6}, std::vector<double>{0.4, 0.29}));
}

TEST(RandomRemoval, MeetsTheTargetAndLeavesAChunk) {
  const PruneProblem problem = SmallProblem();
  std::set<std::vector<int32_t>> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<int32_t> removed = RandomRemoval(problem, 45, seed);
    EXPECT_EQ(removed, RandomRemoval(problem, 45, seed));
    int64_t saving = 0;
    for (const int32_t chunk : removed) saving += problem.chunk_tokens[chunk];
    EXPECT_GE(saving, 45);
    EXPECT_LT(saving - problem.chunk_tokens[removed.back()], 45);
    EXPECT_EQ(std::set<int32_t>(removed.begin(), removed.end()).size(), removed.size());
    seen.insert(removed);
    EXPECT_EQ(RandomRemoval(problem, 1000, seed).size(), 3u);
  }
  EXPECT_GT(seen.size(), 5u);
  EXPECT_TRUE(RandomRemoval(problem, 0, 1).empty());
}

// Head 0 knows: it loses 0.05 to 0.1 where the evidence stays and 0.3 to 0.5 to blind removals.
// Head 1 loses the same to either.
struct Drawn {
  std::vector<HeadLosses> kept;
  std::vector<HeadLosses> blind;
};
Drawn Draw(int n) {
  Rng rng(7);
  Drawn drawn;
  const auto add = [&](std::vector<HeadLosses>& to, double low, double high) {
    const double knowing = low + (high - low) * rng.Uniform();
    const double other = 0.6 + 0.2 * rng.Uniform();
    to.push_back({{1.5 * knowing, 1.2 * other}, {knowing, other}});
  };
  for (int i = 0; i < n; ++i) {
    add(drawn.kept, 0.05, 0.1);
    add(drawn.blind, 0.3, 0.5);
  }
  return drawn;
}

TEST(PruneTolerances, AllowWhatKeptTheEvidenceAndRefuseBlindRemovals) {
  const Drawn drawn = Draw(40);
  const std::vector<double> weights = {1, 0};
  const PruneTolerances found = ChooseTolerances(drawn.kept, drawn.blind, weights);
  for (const HeadLosses& losses : drawn.kept) {
    EXPECT_TRUE(losses.Within(found.eps, found.eps_audit));
  }
  for (const HeadLosses& losses : drawn.blind) {
    EXPECT_FALSE(losses.Within(found.eps, found.eps_audit));
  }
  EXPECT_LT(found.eps_audit[0], found.eps[0]);
  EXPECT_LT(found.eps_audit[1], found.eps[1]);
}

TEST(PruneTolerances, LeaveAFewOutliersOutButNoMore) {
  Drawn drawn = Draw(40);
  for (const int i : {3, 11, 25}) drawn.kept[i].mean[0] = 0.45;  // three of 40; two may go
  for (const int i : {3, 11, 25}) drawn.kept[i].worst_row[0] = 0.7;
  const std::vector<double> weights = {1, 0};
  PruneTolerances found = ChooseTolerances(drawn.kept, drawn.blind, weights);
  EXPECT_GT(found.eps_audit[0], 0.45);
  drawn.kept[25] = drawn.kept[24];
  found = ChooseTolerances(drawn.kept, drawn.blind, weights);
  // Leaving out one of the two changes nothing yet, so no first step is taken.
  EXPECT_GT(found.eps_audit[0], 0.45);
  drawn.kept[11].mean[0] = 0.25;
  found = ChooseTolerances(drawn.kept, drawn.blind, weights);
  EXPECT_LT(found.eps_audit[0], 0.3);
}

TEST(PruneTolerances, StayWithinTheirRange) {
  const std::vector<HeadLosses> kept = {{{1, 0}, {1, 0}}};
  const std::vector<double> weights = {1, 1};
  const PruneTolerances found = ChooseTolerances(kept, {}, weights);
  EXPECT_THAT(found.eps, Each(Le(0.999)));
  EXPECT_THAT(found.eps, Each(Gt(0)));
  EXPECT_THAT(found.eps_audit, Each(Gt(0)));
  for (size_t head = 0; head < 2; ++head) EXPECT_LT(found.eps_audit[head], found.eps[head]);
}

}  // namespace
}  // namespace winnow
