#include "eval/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "policy/arm.h"
#include "testing/fake_backbone.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using ::winnow::testing::FakeBackbone;

std::vector<EvalSample> Samples(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<EvalSample> samples(n);
  for (EvalSample& sample : samples) {
    sample.tokens.resize(900);
    for (TokenId& token : sample.tokens) token = static_cast<TokenId>(rng.Below(101));
    sample.max_new_tokens = 12;
  }
  return samples;
}

class CalibrationTest : public ::testing::Test {
 protected:
  CalibrationTest() {
    EngineOptions engine;
    engine.prefill_chunk = 128;
    engine.planes = ArmPlanes(CalibrationArms({}, backbone_.config().n_layers));
    engine_ = std::make_unique<Engine>(&backbone_, nullptr, &pool_, engine);
    options_.calibrate = Samples(2, 1);
    options_.test = Samples(2, 2);
  }
  CalibrationResult Run() { return Calibrate(engine_.get(), backbone_.config(), options_, hooks_); }

  ThreadPool pool_{1};
  FakeBackbone backbone_{{.n_layers = 3, .context_length = 1024}};
  std::unique_ptr<Engine> engine_;
  CalibrationOptions options_;
  CalibrationHooks hooks_;
};

TEST_F(CalibrationTest, ChoosesTheCheapestThatMeetsTheTarget) {
  options_.target = {.kl = 0.05, .top1_agreement = 0.5};
  options_.gates = GateSearch::kHeads;
  int told = 0;
  hooks_.on_trial = [&](const Trial&) { ++told; };
  const CalibrationResult result = Run();
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(told, std::ssize(result.tried));
  ASSERT_NE(result.arm, "dense");
  EXPECT_TRUE(result.calibration.Meets(options_.target));
  EXPECT_LT(result.calibration.bytes_ratio, 1);
  EXPECT_EQ(result.tried.back().stage, "test");
  EXPECT_EQ(result.test.prompts, 2);
  for (const Trial& trial : result.tried) {
    if (trial.stage == "test") continue;
    EXPECT_FALSE(trial.met && trial.figures.kl > 0.7 * 0.05) << trial.arm;
    // Nothing that met the target was cheaper than what the search settled on.
    if (trial.met && trial.stage != "gates") {
      EXPECT_LE(result.calibration.bytes_ratio, trial.figures.bytes_ratio + 1e-9) << trial.arm;
    }
  }
  EXPECT_THAT(CalibrationTable(result), HasSubstr(result.arm));
}

TEST_F(CalibrationTest, SaysThatNothingMetTheTarget) {
  options_.target = {.kl = 1e-30, .top1_agreement = 1};
  const CalibrationResult result = Run();
  EXPECT_TRUE(result.complete);
  EXPECT_FALSE(result.met);
  for (const Trial& trial : result.tried) {
    EXPECT_FALSE(trial.met) << trial.arm;
    if (trial.stage == "closest" || trial.stage == "test") continue;
    // What one prompt shows is not asked of the next.
    EXPECT_TRUE(trial.cut_short) << trial.arm;
    EXPECT_EQ(trial.figures.prompts, 1);
  }
  // The closest one is told, with figures of all prompts.
  ASSERT_GE(result.tried.size(), 2U);
  const Trial& closest = result.tried[result.tried.size() - 2];
  EXPECT_EQ(closest.stage, "closest");
  EXPECT_EQ(result.arm, closest.arm);
  EXPECT_EQ(result.calibration.prompts, 2);
  EXPECT_EQ(result.test.prompts, 2);
}

TEST_F(CalibrationTest, TriesTheGivenArmsOnly) {
  options_.target = {.kl = 10, .top1_agreement = 0};
  options_.gates = GateSearch::kNone;
  options_.arms = {"select=sketch,budget=256,dense_layers=0",
                   "select=sketch,budget=32,dense_layers=0"};
  const CalibrationResult result = Run();
  EXPECT_EQ(result.tried.size(), 3U);
  EXPECT_EQ(result.arm, ParseArm(options_.arms[1]).resolved);
}

TEST_F(CalibrationTest, ATrialIsWhatTheJudgeSays) {
  options_.target = {.kl = 10, .top1_agreement = 0};
  options_.gates = GateSearch::kNone;
  options_.arms = {"select=sketch,budget=32,dense_layers=0"};
  const CalibrationResult result = Run();
  Fidelity expected;
  for (const EvalSample& sample : options_.calibrate) {
    const auto runs = RunArms(engine_.get(), sample, {"dense", options_.arms[0]}, {}, {});
    expected += *(*runs)[1].fidelity;
  }
  EXPECT_EQ(result.calibration.positions, expected.positions);
  EXPECT_DOUBLE_EQ(result.calibration.kl, expected.MeanKl());
  EXPECT_DOUBLE_EQ(result.calibration.top1_agreement, expected.Top1Agreement());
}

TEST_F(CalibrationTest, StopsWithNothing) {
  for (const int after : {0, 30}) {
    int polls = 0;
    hooks_.should_stop = [&] { return polls++ >= after; };
    const CalibrationResult result = Run();
    EXPECT_FALSE(result.complete);
    EXPECT_EQ(result.arm, "dense");
    EXPECT_EQ(engine_->active_requests(), 0);
  }
}

TEST_F(CalibrationTest, WhatWasFoundIsTestedWhenItStops) {
  options_.target = {.kl = 10, .top1_agreement = 0};
  bool found = false;
  hooks_.on_trial = [&](const Trial& trial) { found |= trial.met; };
  hooks_.should_stop = [&] { return found; };
  const CalibrationResult result = Run();
  EXPECT_FALSE(result.complete);
  EXPECT_TRUE(result.met);
  ASSERT_EQ(result.tried.size(), 2U);
  EXPECT_EQ(result.arm, result.tried[0].arm);
  EXPECT_EQ(result.calibration, result.tried[0].figures);
  EXPECT_EQ(result.test.prompts, 2);
  EXPECT_EQ(engine_->active_requests(), 0);
}

}  // namespace
}  // namespace winnow
