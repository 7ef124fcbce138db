#include "policy/certify/refine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "policy/certify/test_pages.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Pages of normal keys, read part apart; opening reads the truth.
class RefineTest : public ::testing::Test {
 protected:
  void Make(uint64_t seed, int n_pages) {
    Rng rng(seed);
    query_ = {0.4, -0.3, 0.2};
    for (int p = 0; p <= n_pages; ++p) {
      pages_.push_back(testing::MakePage(0, 3, 2, rng));
      const testing::TestPage& page = pages_.back();
      states_.push_back(testing::Attend(query_, page.Keys(), page.Values()));
      outs_.emplace_back(states_.back().out.begin(), states_.back().out.end());
      all_.dim = 3;
      all_.value_dim = 2;
      all_.n += page.n;
      all_.keys.insert(all_.keys.end(), page.keys.begin(), page.keys.end());
      all_.values.insert(all_.values.end(), page.values.begin(), page.values.end());
      if (p > 0) summaries_.push_back(Summarize(page.Keys(), page.Values()));
    }
    for (const PageSummary& summary : summaries_) {
      parts_.push_back(SummaryPart(query_, summary.View()));
    }
    truth_ = testing::Attend(query_, all_.Keys(), all_.Values());
  }
  // State 0 is the read part; part p is state p + 1.
  ReadPart State(int64_t index) const {
    return {static_cast<double>(states_[index].log_mass), outs_[index]};
  }
  RefineResult Run(RefineOptions options) {
    return Refine(
        options, State(0), parts_, [this](int64_t p) { return State(p + 1); }, out_);
  }

  std::vector<double> query_, out_ = std::vector<double>(2);
  std::vector<testing::TestPage> pages_;
  std::vector<testing::Truth> states_;
  std::vector<std::vector<double>> outs_;
  std::vector<PageSummary> summaries_;
  std::vector<UnreadPart> parts_;
  testing::TestPage all_;
  testing::Truth truth_;
};

TEST_F(RefineTest, ReachesTheToleranceAndTheBoundHolds) {
  Make(51, 8);
  for (RefineGoal goal : {RefineGoal::kDropped, RefineGoal::kCompleted}) {
    size_t opened_before = 0;
    for (double tolerance : {1.0, 0.1, 0.01, 0.0}) {
      const RefineResult result = Run({goal, tolerance, 8});
      EXPECT_TRUE(result.met);
      EXPECT_LE(result.bound, tolerance);
      // Four roundings of values of about 3, where everything is read and the bound is zero.
      EXPECT_LE(testing::Distance(truth_.out, out_), result.bound + 1e-14);
      EXPECT_GE(result.opened.size(), opened_before);
      opened_before = result.opened.size();
    }
    EXPECT_EQ(opened_before, 8u);
  }
}

TEST_F(RefineTest, AllReadIsExact) {
  Make(52, 3);
  const RefineResult result = Run({RefineGoal::kCompleted, 0, 3});
  EXPECT_EQ(Describe(result.statement), "exact");
  EXPECT_EQ(result.bound, 0);
}

TEST_F(RefineTest, OpensTheLargestTermFirstAndTiesByIndex) {
  Make(53, 3);
  for (UnreadPart& part : parts_) part = parts_[0];
  parts_[1].log_mass = {5, 6, {StatementKind::kDeterministic}};
  parts_[1].log_estimate = 5.5;
  const RefineResult result = Run({RefineGoal::kDropped, 0, 2});
  EXPECT_THAT(result.opened, ElementsAre(1, 0));
}

TEST_F(RefineTest, StopsAtTheLimitAndSaysSo) {
  Make(54, 5);
  const RefineResult result = Run({RefineGoal::kDropped, 1e-6, 2});
  EXPECT_EQ(result.opened.size(), 2u);
  EXPECT_FALSE(result.met);
  EXPECT_GT(result.bound, 1e-6);
  EXPECT_GE(result.bound, testing::Distance(truth_.out, out_));
  EXPECT_THAT(Run({RefineGoal::kDropped, 1e-6, 0}).opened, IsEmpty());
}

TEST_F(RefineTest, NotANumberEndsItWithoutABound) {
  Make(55, 3);
  outs_[1][0] = outs_[2][0] = outs_[3][0] = kNaN;
  const RefineResult after_reading = Run({RefineGoal::kCompleted, 0, 3});
  EXPECT_EQ(after_reading.opened.size(), 1u);
  EXPECT_FALSE(after_reading.met);
  EXPECT_EQ(after_reading.statement.standing, Standing::kNotFinite);
  parts_[1].log_estimate = kNaN;
  const RefineResult at_once = Run({RefineGoal::kCompleted, 1e9, 3});
  EXPECT_THAT(at_once.opened, IsEmpty());
  EXPECT_FALSE(at_once.met);
  EXPECT_FALSE(at_once.statement.IsBound());
}

TEST_F(RefineTest, KernelErrorsOfWhatIsOpenedAreCarried) {
  Make(56, 4);
  const auto open = [this](int64_t p) {
    ReadPart part = State(p + 1);
    part.log_mass += 1e-3;
    part.log_mass_error = 1e-3;
    return part;
  };
  const RefineResult result = Refine({RefineGoal::kCompleted, 0, 4}, State(0), parts_, open, out_);
  EXPECT_EQ(result.opened.size(), 4u);
  EXPECT_GT(result.bound, 0);
  EXPECT_GE(result.bound, testing::Distance(truth_.out, out_));
  EXPECT_EQ(result.statement.kind, StatementKind::kDeterministic);
}

}  // namespace
}  // namespace winnow
