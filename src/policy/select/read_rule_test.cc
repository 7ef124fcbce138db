#include "policy/select/read_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/rng.h"

namespace winnow {
namespace {

constexpr int kSlots = 32;

std::vector<float> RandomShares(int64_t n, int group, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> pooled(n);
  for (float& x : pooled) x = static_cast<float>(std::exp(4 * rng.Normal()));
  const double sum = std::accumulate(pooled.begin(), pooled.end(), 0.0);
  for (float& x : pooled) x = static_cast<float>(x * group / sum);
  return pooled;
}

PageChoice Choose(const ReadRule& rule, const std::vector<float>& pooled, MiddlePages middle,
                  int group = 2) {
  PageChoice choice;
  choice.read = {7, 8, 9};  // what an earlier step left must not matter
  choice.unread = {1};
  choice.widened = 1;
  ChoosePages(rule, pooled, group, kSlots, middle, &choice);
  return choice;
}

double ShareOf(const std::vector<float>& pooled, const std::vector<int32_t>& pages, int group) {
  double sum = 0;
  for (int32_t page : pages) sum += pooled[page];
  return sum / group;
}

// A page may be left unread if none of its tokens is a sink, recent, generated and among the last
// gen_exact, or of the tail before those.
TEST(FindMiddle, LeavesOutWhatIsAlwaysRead) {
  Rng rng(1);
  for (int trial = 0; trial < 3000; ++trial) {
    ReadRule rule;
    rule.sinks = static_cast<int64_t>(rng.Below(80));
    rule.recent = 1 + static_cast<int64_t>(rng.Below(100));
    rule.gen_exact = static_cast<int64_t>(rng.Below(100));
    rule.tail = static_cast<int64_t>(rng.Below(3)) * 16;
    const auto n_tokens = static_cast<int64_t>(rng.Below(600));
    const auto n_generated = static_cast<int64_t>(rng.Below(n_tokens + 1));
    const MiddlePages middle = FindMiddle(rule, n_tokens, n_generated, kSlots);
    for (int64_t page = 0; page * kSlots < n_tokens; ++page) {
      bool free = (page + 1) * kSlots <= n_tokens;
      for (int64_t t = page * kSlots; t < std::min(n_tokens, (page + 1) * kSlots); ++t) {
        const bool generated = t >= n_tokens - std::min(n_generated, rule.gen_exact) - rule.tail;
        free = free && t >= rule.sinks && t < n_tokens - rule.recent && !generated;
      }
      EXPECT_EQ(middle.begin <= page && page < middle.end, free)
          << page << " of " << n_tokens << ", " << n_generated << " generated";
    }
  }
}

TEST(PageChoice, ReadsTheBestOfTheUnreadAsWell) {
  const std::vector<float> pooled = {0, 5, 1, 4, 2, 4, 3, 0};
  PageChoice choice;
  choice.read = {1};
  choice.unread = {2, 3, 4, 5, 6};
  EXPECT_EQ(choice.ReadMore(pooled, 2), (std::vector<int32_t>{3, 5}));
  EXPECT_EQ(choice.read, (std::vector<int32_t>{1, 3, 5}));
  EXPECT_EQ(choice.unread, (std::vector<int32_t>{2, 4, 6}));
  EXPECT_TRUE(choice.ReadMore(pooled, 0).empty());
  EXPECT_EQ(choice.ReadMore(pooled, 100), (std::vector<int32_t>{2, 4, 6}));
  EXPECT_EQ(choice.read, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(choice.unread.empty());
}

TEST(ScoreGap, IsTheLeastOfTheHeadsBetweenTheBestTwoPages) {
  std::vector<float> max = {99, 1, 7, 5, 99, 99, 3, 2, 3.5f, 99};  // two heads of five pages
  const PageMasses masses{.n_pages = 5, .stride = 5, .max = max.data()};
  EXPECT_EQ(ScoreGap(masses, 1, {1, 4}), 2);
  EXPECT_EQ(ScoreGap(masses, 2, {1, 4}), 0.5f);
  EXPECT_EQ(ScoreGap(masses, 2, {1, 2}), std::numeric_limits<float>::infinity());
  max[1] = max[3] = -std::numeric_limits<float>::infinity();  // pages that were not scored
  EXPECT_EQ(ScoreGap(masses, 1, {1, 4}), std::numeric_limits<float>::infinity());
}

TEST(ChoosePages, ACertificateDecidesInPlaceOfTheEstimate) {
  ReadRule rule;
  rule.budget = kSlots;
  rule.tolerance = 0.01;
  const std::vector<float> pooled(40, 0.05f);
  EXPECT_TRUE(Choose(rule, pooled, {1, 39}).all_for_tolerance);
  rule.certified = true;
  const PageChoice choice = Choose(rule, pooled, {1, 39});
  EXPECT_FALSE(choice.all_for_tolerance);
  EXPECT_EQ(choice.widened, 0);
  EXPECT_EQ(choice.read.size(), 1U);
}

TEST(ChoosePages, FallbackMayBeDenseAtOnceOrOnlyCounted) {
  ReadRule rule;
  rule.budget = kSlots;
  rule.tolerance = 0.5;
  const std::vector<float> pooled(40, 0.05f);
  rule.fallback = Fallback::kDense;
  EXPECT_TRUE(Choose(rule, pooled, {1, 39}).all_for_tolerance);
  EXPECT_EQ(Choose(rule, pooled, {1, 39}).widened, 0);
  rule.fallback = Fallback::kCap;
  const PageChoice capped = Choose(rule, pooled, {1, 39});
  EXPECT_TRUE(capped.over_tolerance);
  EXPECT_FALSE(capped.all_for_tolerance);
  EXPECT_EQ(capped.read.size(), 1U);
  rule.tolerance = 0.99;
  EXPECT_FALSE(Choose(rule, pooled, {1, 39}).over_tolerance);
}

TEST(ChoosePages, TakesTheBestWithinTheBudgetAndTheLowerPageOfEquals) {
  ReadRule rule;
  rule.budget = 3 * kSlots - 5;  // three pages hold it
  std::vector<float> pooled = {9, 0.1f, 0.3f, 0.2f, 0.3f, 0.2f, 0.3f, 9};
  EXPECT_EQ(Choose(rule, pooled, {1, 7}).read, (std::vector<int32_t>{2, 4, 6}));
  rule.budget = kSlots;
  EXPECT_EQ(Choose(rule, pooled, {1, 7}).read, (std::vector<int32_t>{2}));
  EXPECT_EQ(Choose(rule, pooled, {1, 7}).unread, (std::vector<int32_t>{1, 3, 4, 5, 6}));
  rule.budget = 100 * kSlots;
  EXPECT_EQ(Choose(rule, pooled, {1, 7}).read, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(Choose(rule, pooled, {3, 3}).read.empty());
}

// The paper's rule in tokens; pages hold what it asks for.
TEST(ChoosePages, AFractionIsThePapersBudget) {
  Params params("select=sketch");
  params.Set("fraction", "0.1");
  const ReadRule rule = ReadRule::FromParams(params, false);
  EXPECT_EQ(rule.sinks, 4);
  EXPECT_EQ(rule.tail, 16);
  // Of 4,000 prompt tokens 400, less 4 sinks and 16 at the end; ten generated ones come on top.
  const MiddlePages middle = FindMiddle(rule, 4010, 10, kSlots);
  EXPECT_EQ(middle.budget, 380);
  EXPECT_EQ(middle.begin, 1);
  EXPECT_EQ(middle.end, (4000 - 16) / kSlots);
  const PageChoice choice = Choose(rule, RandomShares(125, 2, 1), middle);
  EXPECT_EQ(choice.read.size(), 12U);  // ⌈380/32⌉
  // The anchors alone are more than the share asks for: nothing is retrieved.
  ReadRule little = rule;
  little.fraction = 0.005;
  EXPECT_EQ(FindMiddle(little, 4000, 0, kSlots).budget, 0);
  EXPECT_TRUE(
      Choose(little, RandomShares(125, 2, 1), FindMiddle(little, 4000, 0, kSlots)).read.empty());
  // 0.07·100 is 7.000000000000001 in double.
  little = {.fraction = 0.07, .sinks = 0};
  EXPECT_EQ(FindMiddle(little, 100, 0, kSlots).budget, 7);
}

TEST(ChoosePages, MassGivesTheSmallestSetWithinFloorAndCap) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> pooled = RandomShares(60, 2, seed);
    ReadRule rule;
    rule.mass = 0.9;
    const MiddlePages middle{2, 57};
    const PageChoice choice = Choose(rule, pooled, middle);
    EXPECT_LE(ShareOf(pooled, choice.unread, 2), 0.1 + 1e-6);
    if (!choice.read.empty()) {
      const int32_t worst =
          *std::min_element(choice.read.begin(), choice.read.end(),
                            [&](int32_t a, int32_t b) { return pooled[a] < pooled[b]; });
      EXPECT_GT(ShareOf(pooled, choice.unread, 2) + pooled[worst] / 2, 0.1 - 1e-6);
    }
    rule.floor = 20 * kSlots;
    EXPECT_GE(Choose(rule, pooled, middle).read.size(), 20U);
    rule.floor = 0;
    rule.cap = 2 * kSlots;
    EXPECT_LE(Choose(rule, pooled, middle).read.size(), 2U);
  }
}

TEST(ChoosePages, ToleranceWidensTwiceThenReadsEverything) {
  const std::vector<float> flat(64, 2.0f / 64);
  ReadRule rule;
  rule.budget = 4 * kSlots;
  rule.tolerance = 0.8;  // 13 of the 64 pages
  EXPECT_EQ(Choose(rule, flat, {0, 64}).read.size(), 16U);
  EXPECT_EQ(Choose(rule, flat, {0, 64}).widened, 2);
  EXPECT_FALSE(Choose(rule, flat, {0, 64}).all_for_tolerance);
  rule.tolerance = 0.5;  // 32 pages, which two doublings do not reach
  EXPECT_EQ(Choose(rule, flat, {0, 64}).read.size(), 64U);
  EXPECT_TRUE(Choose(rule, flat, {0, 64}).all_for_tolerance);
}

TEST(ChoosePages, AShareThatIsNotFiniteIsSaid) {
  std::vector<float> pooled(8, 0.25f);
  pooled[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(Choose({}, pooled, {0, 8}).not_finite);
  EXPECT_TRUE(Choose({}, pooled, {0, 8}).unread.empty());
  EXPECT_FALSE(Choose({}, pooled, {0, 5}).not_finite);
}

TEST(DropTail, NeverDropsMoreThanTheTailAndKeepsTheOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> pooled = RandomShares(100, 3, seed);
    for (const double tail : {0.0, 0.001, 0.01, 0.2}) {
      std::vector<int32_t> pages;
      for (int32_t page = 0; page < 100; page += 2) pages.push_back(page);
      std::vector<int32_t> kept = pages;
      DropTail(pooled, tail, &kept);
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
      EXPECT_LE(ShareOf(pooled, pages, 3) - ShareOf(pooled, kept, 3), tail + 1e-6);
      if (tail == 0) {
        EXPECT_EQ(kept, pages);
      }
    }
  }
}

}  // namespace
}  // namespace winnow
