#include "policy/prefill/layer_selection.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"

namespace winnow {
namespace {

using Flags = std::vector<uint8_t>;

constexpr auto kPassing = [] { return AuditResult{.passes = true}; };
constexpr auto kFailing = [] { return AuditResult{.passes = false}; };

TEST(SetChange, CountsRetainedChunks) {
  EXPECT_EQ(SetChange(Flags{1, 0, 0, 0}, Flags{1, 0, 0, 0}), 0);
  EXPECT_EQ(SetChange(Flags{0, 0, 0, 0}, Flags{1, 0, 0, 0}), 0.25);
  EXPECT_EQ(SetChange(Flags{1, 0, 0, 0}, Flags{0, 1, 1, 0}), 0.75);
  EXPECT_EQ(SetChange(Flags{1, 1}, Flags{1, 1}), 0);  // nothing is retained by either
  EXPECT_EQ(SetChange(Flags{}, Flags{}), 0);
  Rng rng(1);
  for (int trial = 0; trial < 100; ++trial) {
    Flags a(6);
    Flags b(6);
    for (int i = 0; i < 6; ++i) {
      a[i] = rng.Below(2) != 0;
      b[i] = rng.Below(2) != 0;
    }
    EXPECT_EQ(SetChange(a, b), SetChange(b, a));
    EXPECT_LE(SetChange(a, b), 1);
    EXPECT_EQ(SetChange(a, b) == 0, a == b);
  }
}

TEST(LayerSelector, AuditsOnlyWhatPassedTargetAndStreak) {
  LayerSelector selector({.target_saving = 10, .min_streak = 1, .max_change = 0.5});
  int audits = 0;
  const auto audit = [&] {
    ++audits;
    return kPassing();
  };
  EXPECT_EQ(selector.Observe(Flags{1, 0, 0}, 5, audit).verdict, PruneVerdict::kTargetNotMet);
  EXPECT_EQ(selector.Observe(Flags{1, 0, 0}, 5, audit).verdict, PruneVerdict::kTargetNotMet);
  EXPECT_EQ(audits, 0);
  // The streak counted on while the target was missed.
  const LayerSelector::Step step = selector.Observe(Flags{1, 0, 0}, 10, audit);
  EXPECT_EQ(step.verdict, PruneVerdict::kAccepted);
  EXPECT_EQ(step.streak, 2);
  EXPECT_EQ(audits, 1);
}

TEST(LayerSelector, InvalidLayersForgetAndFailedAuditsDoNot) {
  LayerSelector selector({.target_saving = 1, .min_streak = 2, .max_change = 0});
  EXPECT_TRUE(std::isnan(selector.Observe(Flags{1, 0}, 1, kFailing).set_change));
  EXPECT_EQ(selector.Observe(Flags{1, 0}, 1, kFailing).streak, 1);
  EXPECT_EQ(selector.Observe(Flags{1, 0}, 1, kFailing).verdict, PruneVerdict::kAuditFailed);
  EXPECT_EQ(selector.Observe(Flags{1, 0}, 1, kFailing).streak, 3);
  const LayerSelector::Step invalid = selector.ObserveInvalid(PruneVerdict::kInvalidResidual);
  EXPECT_EQ(invalid.streak, 0);
  EXPECT_FALSE(invalid.audit.has_value());
  const LayerSelector::Step next = selector.Observe(Flags{1, 0}, 1, kPassing);
  EXPECT_TRUE(std::isnan(next.set_change));
  EXPECT_EQ(next.verdict, PruneVerdict::kStreakNotMet);
}

TEST(LayerSelector, AnEmptyRemovalIsAPredecessor) {
  LayerSelector selector({.target_saving = 1, .min_streak = 1, .max_change = 0.4});
  EXPECT_EQ(selector.Observe(Flags{0, 0, 0}, 0, kPassing).verdict, PruneVerdict::kTargetNotMet);
  const LayerSelector::Step step = selector.Observe(Flags{1, 0, 0}, 1, kPassing);
  EXPECT_DOUBLE_EQ(step.set_change, 1.0 / 3);
  EXPECT_EQ(step.verdict, PruneVerdict::kAccepted);
}

TEST(LayerSelector, WithoutStreakTheFirstLayerMayBeAccepted) {
  LayerSelector selector({.target_saving = 1, .min_streak = 0, .max_change = 0});
  EXPECT_EQ(selector.Observe(Flags{1, 0}, 1, kPassing).verdict, PruneVerdict::kAccepted);
}

TEST(BypassBeforeScoring, InThisOrder) {
  EXPECT_EQ(BypassBeforeScoring(0, 1, 0), PruneOutcome::kNoCandidates);
  EXPECT_EQ(BypassBeforeScoring(3, 3, 0), PruneOutcome::kZeroTarget);
  EXPECT_EQ(BypassBeforeScoring(3, 3, 1), PruneOutcome::kNothingRemovable);
  EXPECT_EQ(BypassBeforeScoring(3, 2, 1), std::nullopt);
}

}  // namespace
}  // namespace winnow
