#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

SequenceStatus Waiting(int64_t pages, int64_t n_prompt = 100) {
  return {.phase = Phase::kWaiting, .worst_case_pages = pages, .n_prompt = n_prompt};
}
SequenceStatus Decoding(int64_t pages) {
  return {.phase = Phase::kDecode, .worst_case_pages = pages};
}

TEST(PlanStep, NothingToDo) {
  const StepPlan plan = PlanStep({}, {.capacity_pages = 10});
  EXPECT_THAT(plan.admit, IsEmpty());
  EXPECT_THAT(plan.decode, IsEmpty());
  EXPECT_THAT(plan.prefill, IsEmpty());
}

TEST(PlanStep, AdmitsByMemoryInOrderAndNobodyOvertakes) {
  // The second does not fit beside the first; the third would, and waits all the same.
  const SequenceStatus sequences[] = {Waiting(6), Waiting(6), Waiting(1)};
  const StepPlan plan = PlanStep(sequences, {.capacity_pages = 10, .max_batch = 8});
  EXPECT_THAT(plan.admit, ElementsAre(0));
  EXPECT_THAT(plan.prefill, IsEmpty());
}

TEST(PlanStep, CountsWhatIsRunning) {
  const SequenceStatus sequences[] = {Decoding(7), Waiting(3), Waiting(1)};
  EXPECT_THAT(PlanStep(sequences, {.capacity_pages = 10, .max_batch = 8}).admit, ElementsAre(1));
  EXPECT_THAT(PlanStep(sequences, {.capacity_pages = 11, .max_batch = 8}).admit, ElementsAre(1, 2));
  EXPECT_THAT(PlanStep(sequences, {.capacity_pages = 11, .max_batch = 2}).admit, ElementsAre(1));
}

TEST(PlanStep, MixesDecodeWithOneQuantumOfTheFirstPrefill) {
  SequenceStatus first{.phase = Phase::kPrefill,
                       .worst_case_pages = 1,
                       .layer = 3,
                       .next_token = 512,
                       .n_prompt = 700};
  SequenceStatus second = first;
  second.layer = 0;
  const SequenceStatus sequences[] = {Decoding(1), first, Decoding(1), second};
  const StepPlan plan =
      PlanStep(sequences, {.capacity_pages = 10, .max_batch = 8, .prefill_chunk = 512});
  EXPECT_THAT(plan.decode, ElementsAre(0, 2));
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_EQ(plan.prefill[0].sequence, 1);
  EXPECT_EQ(plan.prefill[0].layer, 3);
  EXPECT_EQ(plan.prefill[0].begin, 512);
  EXPECT_EQ(plan.prefill[0].end, 700);
}

TEST(PlanStep, LetsDecodingSequencesWait) {
  const SequenceStatus prefill{.phase = Phase::kPrefill, .worst_case_pages = 1, .n_prompt = 40};
  const SequenceStatus sequences[] = {Decoding(1), prefill};
  const StepPlan plan =
      PlanStep(sequences, {.capacity_pages = 10, .max_batch = 8, .decode = false});
  EXPECT_THAT(plan.decode, IsEmpty());
  EXPECT_EQ(plan.prefill.size(), 1u);
}

TEST(WorstCasePages, LocalLayersHoldTheirWindowOnly) {
  ModelConfig config;
  config.context_length = 100000;
  config.layers = {{.window = 0}, {.window = 512}};
  constexpr int kSlots = 32;
  constexpr int64_t kChunk = 256;
  EXPECT_EQ(WorstCasePages(config, 1, kSlots, kChunk), 2);
  EXPECT_EQ(WorstCasePages(config, 33, kSlots, kChunk), 4);
  // 10,000 tokens: 313 pages in the global layer; (512 + 256) / 32 + 3 in the local one.
  EXPECT_EQ(WorstCasePages(config, 10000, kSlots, kChunk), 313 + 27);
}

TEST(TokensThatFit, IsTheLargestThatFits) {
  ModelConfig config;
  config.context_length = 4096;
  config.layers = {{.window = 0}, {.window = 64}, {.window = 0}};
  for (int64_t pages : {0, 1, 2, 3, 10, 100, 257, 100000}) {
    const int64_t n = TokensThatFit(config, pages, 32, 128);
    if (n > 0) {
      EXPECT_LE(WorstCasePages(config, n, 32, 128), pages);
    }
    if (n < config.context_length) {
      EXPECT_GT(WorstCasePages(config, n + 1, 32, 128), pages);
    }
  }
}

}  // namespace
}  // namespace winnow
