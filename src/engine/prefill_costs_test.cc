#include "engine/prefill_costs.h"

#include <gtest/gtest.h>

#include "testing/fake_backbone.h"

namespace winnow {
namespace {

using ::winnow::testing::FakeBackbone;

TEST(MeasurePrefillCosts, TimesEverything) {
  ThreadPool pool(1);
  int n_timed = 0;
  for (const int64_t chunk : {1, 100, 512}) {
    FakeBackbone backbone({.context_length = 1024, .windows = {16, 0, 0}});
    const std::optional<PrefillCosts> costs =
        MeasurePrefillCosts(&backbone, &pool, DType::kF16, chunk);
    if (!costs.has_value()) continue;  // the machine is busy
    ++n_timed;
    EXPECT_TRUE(costs->known());
    EXPECT_GE(costs->layer.linear, 0);
    EXPECT_GE(costs->layer.quadratic, 0);
    EXPECT_GT(costs->last_linear, 0);
    EXPECT_GT(costs->score, 0);
    EXPECT_GT(costs->remove, 0);
    EXPECT_GT(costs->copy, 0);
  }
  if (n_timed == 0) GTEST_SKIP() << "the machine is too busy: nothing could be timed";
}

TEST(MeasurePrefillCosts, AChunkBeyondTheLargestDepthStillHasDepths) {
  ThreadPool pool(1);
  FakeBackbone backbone({.context_length = 131072, .max_tokens = 1 << 20});
  MeasurePrefillCosts(&backbone, &pool, DType::kF16, 1 << 20);
}

TEST(MeasurePrefillCosts, AShortContextStillHasDepths) {
  ThreadPool pool(1);
  FakeBackbone backbone({.context_length = 64});
  MeasurePrefillCosts(&backbone, &pool, DType::kF32, 512);
}

TEST(MeasurePrefillCosts, HasNothingToTime) {
  ThreadPool pool(1);
  FakeBackbone shorter({.context_length = 63});
  EXPECT_FALSE(MeasurePrefillCosts(&shorter, &pool, DType::kF16, 512).has_value());
  FakeBackbone one({.n_layers = 1});
  EXPECT_FALSE(MeasurePrefillCosts(&one, &pool, DType::kF16, 512).has_value());
  FakeBackbone local({.windows = {16, 16, 0}});
  EXPECT_FALSE(MeasurePrefillCosts(&local, &pool, DType::kF16, 512).has_value());
}

}  // namespace
}  // namespace winnow
