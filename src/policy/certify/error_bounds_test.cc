#include "policy/certify/error_bounds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "policy/certify/test_pages.h"

namespace winnow {
namespace {

using testing::MakePage;
using testing::MakeQuery;
using testing::TestPage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A context of a read part and pages under one query, with all truths.
struct Context {
  TestPage all, exact;
  std::vector<PageSummary> summaries;
  std::vector<double> query, out;
  ReadPart read;
  std::vector<UnreadPart> parts;
  testing::Truth truth, read_truth;

  Context(int trial, Rng& rng) {
    const int64_t dim = 1 + static_cast<int64_t>(rng.Below(5));
    query = MakeQuery(dim, rng);
    exact = MakePage(0, dim, 3, rng);
    all = exact;
    const auto n_pages = 1 + rng.Below(4);
    for (uint64_t p = 0; p < n_pages; ++p) {
      const int kind = static_cast<int>((trial + p) % testing::kPageKinds);
      const TestPage page = MakePage(kind, dim, 3, rng);
      all.n += page.n;
      all.keys.insert(all.keys.end(), page.keys.begin(), page.keys.end());
      all.values.insert(all.values.end(), page.values.begin(), page.values.end());
      const PageSummary summary = Summarize(page.Keys(), page.Values());
      summaries.push_back(trial % 2 == 0 ? summary : Stored(summary, FloatFormat::kF32));
    }
    truth = testing::Attend(query, all.Keys(), all.Values());
    read_truth = testing::Attend(query, exact.Keys(), exact.Values());
    out.assign(read_truth.out.begin(), read_truth.out.end());
    read = {static_cast<double>(read_truth.log_mass), out};
    for (const PageSummary& summary : summaries) {
      parts.push_back(SummaryPart(query, summary.View()));
    }
  }
};

TEST(ErrorBounds, HoldOnRandomAndAdversarialContexts) {
  Rng rng(41);
  BoundScratch scratch;
  int informative = 0;
  for (int i = 0; i < 5000; ++i) {
    Context c(i, rng);
    // Huge logits have a rounding of their own: log_mass is a double.
    c.read.log_mass_error = 1e-15 * std::abs(c.read.log_mass);
    const ErrorBound dropped = BoundDropped(c.read, c.parts, scratch);
    ASSERT_GE(dropped.bound, testing::Distance(c.truth.out, c.out)) << i;

    // Any estimate is allowed, also outside of the interval.
    if (i % 3 == 1) c.parts[0].log_estimate += 3 * rng.Normal();
    if (i % 3 == 2) c.parts[0].log_estimate = -kInfinity;
    std::vector<double> completed(3);
    CompleteOutput(c.read, c.parts, completed);
    const CompletedBound bound = BoundCompleted(c.read, c.parts, completed, scratch);
    ASSERT_GE(bound.bound, testing::Distance(c.truth.out, completed)) << i;
    ASSERT_GE(bound.by_masses, testing::Distance(c.truth.out, completed)) << i;
    ASSERT_GE(bound.by_values, testing::Distance(c.truth.out, completed)) << i;
    ASSERT_TRUE(bound.statement.IsBound());
    ASSERT_EQ(bound.statement.kind, StatementKind::kDeterministic);
    informative += bound.statement.standing == Standing::kInformative ? 1 : 0;

    const ShareInterval share = BoundUnreadShare(c.read, c.parts);
    const long double unread = -std::expm1(c.read_truth.log_mass - c.truth.log_mass);
    // The truth itself cancels: 1e-18 of huge logits.
    const long double slack = 1e-18L * std::abs(c.truth.log_mass) + 1e-18L;
    ASSERT_LE(share.lo, unread + slack) << i;
    ASSERT_GE(share.hi, unread - slack) << i;
  }
  EXPECT_GT(informative, 1000);
}

// Any output at all, and any mixture of what was read and the pages' means.
TEST(ErrorBounds, HoldForAnyOutput) {
  Rng rng(44);
  BoundScratch scratch;
  int informative = 0;
  for (int i = 0; i < 3000; ++i) {
    Context c(i, rng);
    c.read.log_mass_error = 1e-15 * std::abs(c.read.log_mass);
    std::vector<double> output(3);
    if (i % 3 == 0) output = c.out;
    if (i % 3 == 1) CompleteOutput(c.read, c.parts, output);
    for (double& x : output)
      x += std::pow(10.0, -8 + static_cast<int>(rng.Below(9))) * rng.Normal();
    const ShareInterval share = BoundUnreadShare(c.read, c.parts);
    const ErrorBound bound = BoundOutput(c.read, c.parts, share, output, scratch);
    ASSERT_GE(bound.bound, testing::Distance(c.truth.out, output)) << i;
    ASSERT_EQ(bound.statement.kind, StatementKind::kDeterministic);
    informative += bound.statement.standing == Standing::kInformative ? 1 : 0;
  }
  EXPECT_GT(informative, 300);
}

TEST(ErrorBounds, AShareThatDecidesGivesItsKind) {
  Rng rng(45);
  BoundScratch scratch;
  int decided = 0;
  for (int i = 0; i < 300; ++i) {
    const Context c(i, rng);
    const auto unread = static_cast<double>(-std::expm1(c.read_truth.log_mass - c.truth.log_mass));
    const ShareInterval share{
        unread * (1 - 1e-9), unread * (1 + 1e-9), {StatementKind::kStatistical, {}, 0.05}};
    const ErrorBound bound = BoundOutput(c.read, c.parts, share, c.out, scratch);
    ASSERT_GE(bound.bound, testing::Distance(c.truth.out, c.out) * (1 - 1e-9)) << i;
    if (bound.statement.kind != StatementKind::kStatistical) continue;
    ASSERT_EQ(bound.statement.delta, 0.05);
    ++decided;
  }
  EXPECT_GT(decided, 30);
  const Context c(0, rng);
  ShareInterval nothing;
  nothing.statement.standing = Standing::kNotFinite;
  EXPECT_EQ(BoundOutput(c.read, c.parts, nothing, c.out, scratch).statement.standing,
            Standing::kNotFinite);
}

// The maximum over the box by trying every vertex.
double LargestRatio(const std::vector<BoundScratch::Term>& terms) {
  double largest = 0;
  for (size_t choice = 0; choice < (1u << terms.size()); ++choice) {
    double error = 0;
    double mass = 0;
    for (size_t p = 0; p < terms.size(); ++p) {
      const bool high = ((choice >> p) & 1) != 0;
      error += high ? terms[p].error_hi : terms[p].error_lo;
      mass += high ? terms[p].mass_hi : terms[p].mass_lo;
    }
    if (mass > 0) largest = std::max(largest, error / mass);
  }
  return largest;
}

TEST(ErrorBounds, DinkelbachFindsTheLargestVertex) {
  Rng rng(42);
  BoundScratch scratch;
  for (int i = 0; i < 500; ++i) {
    const Context c(i, rng);
    std::vector<double> contributions(c.parts.size());
    BoundDropped(c.read, c.parts, scratch, contributions);
    const double largest = LargestRatio(scratch.terms);
    double sum = 0;
    for (double x : contributions) sum += x;
    // Ties within 1e-12 count as such.
    ASSERT_NEAR(sum, largest, 1e-11 * largest + 1e-300);
  }
}

TEST(ErrorBounds, KernelErrorsAreIncluded) {
  Rng rng(43);
  BoundScratch scratch;
  for (int i = 0; i < 1000; ++i) {
    Context c(i, rng);
    c.read.log_mass += 0.01 * (2 * rng.Uniform() - 1);
    c.read.log_mass_error = 0.01 + 1e-15 * std::abs(c.read.log_mass);
    c.out[0] += 0.02;
    c.read.out_error = 0.02 + 1e-15;
    std::vector<double> completed(3);
    CompleteOutput(c.read, c.parts, completed);
    ASSERT_GE(BoundDropped(c.read, c.parts, scratch).bound, testing::Distance(c.truth.out, c.out));
    ASSERT_GE(BoundCompleted(c.read, c.parts, completed, scratch).bound,
              testing::Distance(c.truth.out, completed));
  }
}

TEST(ErrorBounds, NothingUnreadIsExact) {
  const std::vector<double> out{1, 2};
  BoundScratch scratch;
  const ReadPart read{0.5, out};
  EXPECT_EQ(BoundDropped(read, {}, scratch).bound, 0);
  EXPECT_EQ(Describe(BoundDropped(read, {}, scratch).statement), "exact");
  std::vector<double> completed(2);
  CompleteOutput(read, {}, completed);
  EXPECT_EQ(completed, out);
  EXPECT_EQ(BoundCompleted(read, {}, completed, scratch).bound, 0);
  EXPECT_EQ(BoundUnreadShare(read, {}).hi, 0);
  EXPECT_EQ(Describe(BoundUnreadShare(read, {}).statement), "exact");
}

TEST(ErrorBounds, NothingReadIsCompletedByEstimatesAlone) {
  const std::vector<double> zeros(2, 0.0);
  const std::vector<double> value{3, 4};
  const UnreadPart part{{1, 1.1, {StatementKind::kDeterministic}}, 1, value, 0.5, 2};
  const ReadPart read{-kInfinity, zeros};
  BoundScratch scratch;
  std::vector<double> completed(2);
  CompleteOutput(read, {&part, 1}, completed);
  EXPECT_EQ(completed, value);
  // One part: the weight is one whatever the mass is; ε_p is what remains.
  EXPECT_NEAR(BoundCompleted(read, {&part, 1}, completed, scratch).bound, 0.5, 1e-9);
  EXPECT_NEAR(BoundDropped(read, {&part, 1}, scratch).bound, 5.5, 1e-9);
  const ShareInterval share = BoundUnreadShare(read, {&part, 1});
  EXPECT_EQ(share.lo, 1);
  EXPECT_EQ(share.hi, 1);
}

TEST(ErrorBounds, VacuousIsSaid) {
  const std::vector<double> out{0, 0};
  const std::vector<double> value{1, 0};
  UnreadPart part{{-20, 20, {StatementKind::kDeterministic}}, 0, value, 1, 1};
  const ReadPart read{0, out};
  BoundScratch scratch;
  EXPECT_EQ(BoundUnreadShare(read, {&part, 1}).statement.standing, Standing::kVacuous);
  part.log_mass = {-kInfinity, kInfinity, {StatementKind::kDeterministic, Standing::kVacuous}};
  std::vector<double> contributions(1);
  const ErrorBound unbounded = BoundDropped(read, {&part, 1}, scratch, contributions);
  EXPECT_EQ(unbounded.statement.standing, Standing::kVacuous);
  // What the values allow: the distance of 1 and the radius of 1.
  EXPECT_NEAR(unbounded.bound, 2, 1e-13);
  EXPECT_EQ(contributions[0], kInfinity);
  std::vector<double> completed{0.5, 0};
  EXPECT_EQ(BoundCompleted(read, {&part, 1}, completed, scratch).statement.standing,
            Standing::kVacuous);
  EXPECT_EQ(BoundUnreadShare(read, {&part, 1}).statement.standing, Standing::kVacuous);
  part.value_radius = kInfinity;
  EXPECT_EQ(BoundDropped(read, {&part, 1}, scratch).bound, kInfinity);
}

TEST(ErrorBounds, KindAndDeltaOfTheIntervalsAreKept) {
  const std::vector<double> out{0, 0};
  const std::vector<double> value{1, 0};
  const UnreadPart part{
      {-3, -2.9, {StatementKind::kStatistical, Standing::kInformative, 0.01}}, -3, value, 1, 1};
  const UnreadPart parts[] = {part, part};
  BoundScratch scratch;
  const ErrorBound bound = BoundDropped({0, out}, parts, scratch);
  EXPECT_EQ(Describe(bound.statement), "statistical(0.02)");
  EXPECT_EQ(Describe(BoundUnreadShare({0, out}, parts).statement), "statistical(0.02)");
}

TEST(ErrorBounds, NotFiniteIsNeverABound) {
  const std::vector<double> out{0, 0};
  const std::vector<double> value{1, 0};
  const std::vector<double> bad_value{1, kNaN};
  const UnreadPart good{{-3, -2, {StatementKind::kDeterministic}}, -3, value, 1, 1};
  std::vector<double> completed(2);
  BoundScratch scratch;
  const auto expect_refused = [&](const ReadPart& read, const UnreadPart& part) {
    const ErrorBound dropped = BoundDropped(read, {&part, 1}, scratch);
    EXPECT_EQ(dropped.statement.standing, Standing::kNotFinite);
    EXPECT_EQ(dropped.bound, kInfinity);
    const CompletedBound bound = BoundCompleted(read, {&part, 1}, completed, scratch);
    EXPECT_FALSE(bound.statement.IsBound());
    EXPECT_EQ(bound.bound, kInfinity);
    EXPECT_FALSE(BoundUnreadShare(read, {&part, 1}).statement.IsBound());
  };
  expect_refused({kNaN, out}, good);
  expect_refused({kInfinity, out}, good);
  expect_refused({0, bad_value}, good);
  for (auto field :
       {&UnreadPart::log_estimate, &UnreadPart::value_error, &UnreadPart::value_radius}) {
    UnreadPart part = good;
    part.*field = kNaN;
    expect_refused({0, out}, part);
  }
  UnreadPart part = good;
  part.log_mass.hi = kNaN;
  expect_refused({0, out}, part);
  part = good;
  part.value_mean = bad_value;
  expect_refused({0, out}, part);
  part = good;
  part.log_mass.statement.standing = Standing::kNotFinite;
  expect_refused({0, out}, part);
}

}  // namespace
}  // namespace winnow
