#include "engine/break_even.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "testing/fake_backbone.h"

namespace winnow {
namespace {

TEST(BreakEvenTokens, IsWhereTheLinesCross) {
  // dense = depth, sparse = 1000 + depth / 4: they cross at 1333.3.
  const std::vector<AttentionTime> times = {
      {1024, 1024, 1256}, {2048, 2048, 1512}, {4096, 4096, 2024}};
  EXPECT_EQ(BreakEvenTokens(times), 1344);
}

TEST(BreakEvenTokens, IsNotBelowWhatWasTimed) {
  EXPECT_EQ(BreakEvenTokens(std::vector<AttentionTime>{{1024, 10, 2}, {2048, 20, 3}}), 1024);
}

TEST(BreakEvenTokens, LooksAtTheDepthsBesideIt) {
  // What happens further out, a cache that is too small, moves nothing.
  const std::vector<AttentionTime> times = {
      {1024, 1024, 1256}, {2048, 2048, 1512}, {4096, 90000, 2024}};
  EXPECT_EQ(BreakEvenTokens(times), 1344);
  // A gain that is lost again does not count.
  EXPECT_EQ(BreakEvenTokens(std::vector<AttentionTime>{{1024, 2, 1}, {2048, 3, 4}, {4096, 6, 5}}),
            3072);
}

TEST(BreakEvenTokens, GoesOnBeyondTheLargest) {
  EXPECT_EQ(BreakEvenTokens(std::vector<AttentionTime>{{1024, 1, 4}, {2048, 3, 5}}), 4096);
}

TEST(BreakEvenTokens, MayBeBeyondReach) {
  EXPECT_EQ(BreakEvenTokens(std::vector<AttentionTime>{{1024, 1, 2}, {2048, 2, 3}}), kNeverPays);
  EXPECT_EQ(BreakEvenTokens(std::vector<AttentionTime>{{1024, 1, 2}, {2048, 2, 4}}), kNeverPays);
}

TEST(AgreedTime, IsTheFastestOfEitherSide) {
  // A machine that is slower as a whole in some rounds changes no ratio.
  const std::vector<LayerTimes> layers = {{{4, 2, 6}, {2, 1, 3}}, {{4, 4, 8}, {2, 2, 4}}};
  EXPECT_EQ(AgreedTime(64, layers), (AttentionTime{64, 3, 1.5}));
}

TEST(AgreedTime, RefusesRoundsThatDisagree) {
  // In most rounds something slowed one side.
  EXPECT_EQ(AgreedTime(64, std::vector<LayerTimes>{{{2, 2, 2}, {1, 1.5, 1.5}}}), std::nullopt);
  EXPECT_EQ(AgreedTime(64, std::vector<LayerTimes>{{{2, 3, 3}, {1, 1, 1}}}), std::nullopt);
}

TEST(MeasureBreakEven, TimesBothSides) {
  ThreadPool pool(1);
  const testing::FakeBackbone backbone({.context_length = 2048});
  for (const char* arm : {"select=sketch,budget=64,dense_layers=1",
                          "select=sketch,budget=64,residual=sketch,off=1", "select=cascade"}) {
    const std::optional<BreakEven> result =
        MeasureBreakEven(&pool, backbone.config(), DType::kF16, arm, 2048);
    if (!result.has_value()) continue;  // the machine is busy
    ASSERT_EQ(result->times.size(), 3U) << arm;
    EXPECT_EQ(result->times[2].depth, 2048);
    for (const AttentionTime& time : result->times) {
      EXPECT_GT(time.dense, 0) << arm;
      EXPECT_GT(time.sparse, 0) << arm;
    }
    EXPECT_GE(result->tokens, 512);
  }
}

TEST(MeasureBreakEven, HasNothingToTime) {
  ThreadPool pool(1);
  const testing::FakeBackbone backbone({.context_length = 2048});
  const BreakEven never;
  EXPECT_EQ(MeasureBreakEven(&pool, backbone.config(), DType::kF16, "select=sketch", 900), never);
  EXPECT_EQ(
      MeasureBreakEven(&pool, backbone.config(), DType::kF16, "select=sketch,dense_layers=3", 2048),
      never);
  EXPECT_THROW(MeasureBreakEven(&pool, backbone.config(), DType::kF16, "select=skech", 2048),
               Error);
}

}  // namespace
}  // namespace winnow
