// Requests whose documents are pruned in mid-prefill: against a plain computation, beside other
// requests, and when what was dropped is asked for again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/answer_test.h"
#include "engine/document_prompt_test.h"
#include "engine/engine.h"
#include "testing/expect_error.h"
#include "testing/fake_backbone.h"

namespace winnow {
namespace {

using ::winnow::testing::Answer;
using ::winnow::testing::DocumentPrompt;
using ::winnow::testing::FakeBackbone;
using ::winnow::testing::kChunk;
using ::winnow::testing::kChunks;
using ::winnow::testing::kDocuments;
using ::winnow::testing::kPrune;
using ::winnow::testing::kQuestion;
using ::winnow::testing::kSystem;
using ::winnow::testing::MakePrompt;
using ::winnow::testing::RandomTokens;

class PruningEngine : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> NewEngine(int64_t prefill_chunk = 64) {
    EngineOptions options;
    options.kv_dtype = DType::kF32;
    options.prefill_chunk = prefill_chunk;
    return std::make_unique<Engine>(&backbone_, nullptr, &pool_, options);
  }

  std::unique_ptr<Engine> NewEngineWith(const PrefillCosts& costs) {
    EngineOptions options;
    options.kv_dtype = DType::kF32;
    options.prefill_chunk = 64;
    options.prefill_costs = costs;
    return std::make_unique<Engine>(&backbone_, nullptr, &pool_, options);
  }

  static Request RequestOf(const DocumentPrompt& prompt, const std::string& arm, Answer* answer,
                           int64_t n_new = 8) {
    Request request = testing::NewRequest(prompt.tokens, arm, n_new, answer);
    request.spans = prompt.spans;
    return request;
  }

  static Answer Ask(Engine* engine, const DocumentPrompt& prompt, const std::string& arm,
                    int64_t n_new = 8) {
    Answer answer;
    answer.result = engine->Run(RequestOf(prompt, arm, &answer, n_new));
    engine->CheckInvariants();
    return answer;
  }

  ThreadPool pool_{2};
  FakeBackbone backbone_{{.context_length = 1024}};
};

const PruneLedger& Pruning(const Answer& answer) { return *answer.result.ledger.pruning; }

std::vector<int64_t> Retained(const PrefillAccount& policy) {
  std::vector<int64_t> tokens;
  for (int64_t token = 0; token < policy.prompt_tokens; ++token) {
    const bool dropped = std::ranges::any_of(policy.chunks, [&](const PruneChunkAccount& chunk) {
      return !chunk.kept && chunk.first <= token && token < chunk.first + chunk.tokens;
    });
    if (!dropped) tokens.push_back(token);
  }
  return tokens;
}

TEST_F(PruningEngine, MatchesThePlainComputation) {
  const auto engine = NewEngine();
  for (const char* layers : {"layers=1", "layers=2"}) {
    std::string arm = kPrune;
    arm.replace(arm.find("layers=2"), 8, layers);
    const DocumentPrompt prompt = MakePrompt(1);
    const Answer answer = Ask(engine.get(), prompt, arm, 1);
    const PruneLedger& pruning = Pruning(answer);
    const int accepted = layers[7] - '0';
    ASSERT_EQ(pruning.policy.outcome, PruneOutcome::kPruned) << pruning.policy.reason;
    EXPECT_EQ(pruning.policy.accepted_layer, accepted);
    EXPECT_EQ(pruning.applied_layer, accepted);
    EXPECT_GE(pruning.policy.removed_tokens, kChunk * kChunks * 3 / 4);
    const std::vector<int64_t> retained = Retained(pruning.policy);
    EXPECT_EQ(std::ssize(retained), std::ssize(prompt.tokens) - pruning.policy.removed_tokens);
    EXPECT_LT(pruning.rows_computed, pruning.rows_dense);
    EXPECT_EQ(pruning.rows_computed,
              accepted * std::ssize(prompt.tokens) + (3 - accepted) * std::ssize(retained));
    const std::vector<float> expected =
        FakeLogits(&backbone_, prompt.tokens, {accepted, retained}).back();
    // f32 attention of a few hundred terms through three layers.
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(answer.logits[0][i], expected[i], 2e-4 * (1 + std::abs(expected[i])));
    }
    engine->ClearPrefixes();
  }
}

TEST_F(PruningEngine, OffOrBypassedGivesDensesBits) {
  const DocumentPrompt prompt = MakePrompt(2);
  const Answer dense = Ask(NewEngine().get(), prompt, "dense");
  const std::vector<std::pair<std::string, PruneOutcome>> arms = {
      {"prefill=entroprefill,uncalibrated=1,layers=2,keep=1", PruneOutcome::kZeroTarget},
      {"prefill=entroprefill,uncalibrated=1,layers=2,v=0,eps=0", PruneOutcome::kFullContext},
      {"prefill=entroprefill,uncalibrated=1,layers=2,m0=12", PruneOutcome::kNothingRemovable}};
  for (const auto& [arm, outcome] : arms) {
    const Answer answer = Ask(NewEngine().get(), prompt, arm);
    EXPECT_EQ(answer.logits, dense.logits) << arm;
    EXPECT_EQ(Pruning(answer).policy.outcome, outcome) << arm;
    EXPECT_FALSE(Pruning(answer).policy.reason.empty()) << arm;
    EXPECT_EQ(Pruning(answer).rows_computed, Pruning(answer).rows_dense) << arm;
  }
  DocumentPrompt without = prompt;
  without.spans.clear();
  const Answer answer = Ask(NewEngine().get(), without, kPrune);
  EXPECT_EQ(answer.logits, dense.logits);
  EXPECT_EQ(Pruning(answer).policy.outcome, PruneOutcome::kNoCandidates);
  EXPECT_EQ(Ask(NewEngine().get(), prompt, "prefill=none").logits, dense.logits);
}

TEST_F(PruningEngine, AnyChunkOfPrefillGivesTheSameBits) {
  const DocumentPrompt prompt = MakePrompt(3);
  const Answer whole = Ask(NewEngine(256).get(), prompt, kPrune);
  for (const int64_t chunk : {1, 7, 32, 100}) {
    const Answer answer = Ask(NewEngine(chunk).get(), prompt, kPrune);
    EXPECT_EQ(answer.logits, whole.logits) << chunk;
    EXPECT_EQ(Retained(Pruning(answer).policy), Retained(Pruning(whole).policy)) << chunk;
  }
}

TEST_F(PruningEngine, OthersInTheBatchGoOnUndisturbed) {
  const DocumentPrompt prompts[] = {MakePrompt(4), MakePrompt(5), MakePrompt(6)};
  std::string early = kPrune;
  early.replace(early.find("layers=2"), 8, "layers=1");
  const std::string arms[] = {"dense", kPrune, early};
  std::vector<Answer> alone;
  alone.reserve(3);
  for (int i = 0; i < 3; ++i) alone.push_back(Ask(NewEngine().get(), prompts[i], arms[i]));
  const auto engine = NewEngine();
  Answer together[3];
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(engine->Submit(RequestOf(prompts[i], arms[i], &together[i])));
    for (int step = 0; step < 3; ++step) engine->Step();
  }
  while (engine->active_requests() > 0) {
    engine->Step();
    engine->CheckInvariants();
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(together[i].logits, alone[i].logits) << arms[i];
}

TEST_F(PruningEngine, WhatWasDroppedComesBackForTheNextQuestion) {
  const auto engine = NewEngine();
  const DocumentPrompt first = MakePrompt(7);
  const Answer before = Ask(engine.get(), first, kPrune);
  ASSERT_GT(Pruning(before).parked_bytes, 0);
  // The same documents, another question.
  DocumentPrompt second = first;
  const std::vector<TokenId> question = RandomTokens(kQuestion, 77);
  std::ranges::copy(question, second.tokens.begin() + kDocuments);
  const Answer fresh = Ask(NewEngine().get(), second, kPrune);
  const Answer resumed = Ask(engine.get(), second, kPrune);
  EXPECT_EQ(resumed.logits, fresh.logits);
  EXPECT_EQ(Retained(Pruning(resumed).policy), Retained(Pruning(fresh).policy));
  EXPECT_EQ(Pruning(resumed).resumed_layers, 2);
  EXPECT_GT(Pruning(resumed).resumed_tokens, kDocuments - 2 * 32);
  EXPECT_LT(Pruning(resumed).rows_computed, Pruning(fresh).rows_computed / 2);
  // And everything, for a request that drops nothing.
  const Answer dense = Ask(NewEngine().get(), first, "dense");
  EXPECT_EQ(Ask(engine.get(), first, "dense").logits, dense.logits);
}

TEST_F(PruningEngine, AWiderSetIsCheaperThanANewPrefill) {
  const auto engine = NewEngine();
  const DocumentPrompt prompt = MakePrompt(8);
  Ask(engine.get(), prompt, kPrune);
  std::string wide = kPrune;
  wide.replace(wide.find("keep=0.25"), 9, "keep=0.75");
  const Answer wider = Ask(engine.get(), prompt, wide);
  EXPECT_EQ(wider.logits, Ask(NewEngine().get(), prompt, wide).logits);
  EXPECT_EQ(Pruning(wider).resumed_layers, 2);
  EXPECT_LT(Pruning(wider).rows_computed, Pruning(wider).rows_dense / 2);
}

// Seconds that no clock has to agree with: only what is concluded from them.
constexpr PrefillCosts kDearLayers = {.layer = {.linear = 1e-3, .quadratic = 1e-6},
                                      .last_linear = 1e-4,
                                      .score = 1e-9,
                                      .remove = 1e-9,
                                      .copy = 1e-12};
constexpr PrefillCosts kDearScores = {
    .layer = {.linear = 1e-6}, .last_linear = 1e-6, .score = 1e-3, .remove = 1e-3, .copy = 1e-9};

TEST_F(PruningEngine, WhatCannotPayIsLeftAlone) {
  const DocumentPrompt prompt = MakePrompt(14);
  const Answer dense = Ask(NewEngine().get(), prompt, "dense");
  const Answer left = Ask(NewEngineWith(kDearScores).get(), prompt, kPrune);
  EXPECT_EQ(left.logits, dense.logits);
  const PruneLedger& pruning = Pruning(left);
  EXPECT_EQ(pruning.policy.outcome, PruneOutcome::kDoesNotPay);
  EXPECT_TRUE(pruning.policy.reason.starts_with("it would not pay: with "))
      << pruning.policy.reason;
  EXPECT_TRUE(pruning.policy.layers.empty());
  EXPECT_EQ(pruning.rows_computed, pruning.rows_dense);
  ASSERT_TRUE(pruning.cost.forecast.has_value());
  EXPECT_FALSE(pruning.cost.forecast->pays());
  ASSERT_TRUE(pruning.cost.predicted.has_value());
  EXPECT_EQ(pruning.cost.predicted->total(), pruning.cost.forecast->full);
  EXPECT_EQ(pruning.cost.measured.above, 0);
  EXPECT_TRUE(std::isnan(pruning.cost.ideal_share));
  // The arm may insist.
  const Answer insists = Ask(NewEngineWith(kDearScores).get(), prompt, kPrune + ",must_pay=0");
  EXPECT_EQ(insists.logits, Ask(NewEngine().get(), prompt, kPrune).logits);
  EXPECT_EQ(Pruning(insists).policy.outcome, PruneOutcome::kPruned);
  EXPECT_FALSE(Pruning(insists).cost.forecast->pays());
}

TEST_F(PruningEngine, WhatPaysIsComparedAfterwards) {
  const DocumentPrompt prompt = MakePrompt(15);
  const Answer unforeseen = Ask(NewEngine().get(), prompt, kPrune);
  EXPECT_FALSE(Pruning(unforeseen).cost.forecast.has_value());
  EXPECT_FALSE(Pruning(unforeseen).cost.predicted.has_value());
  EXPECT_GT(Pruning(unforeseen).cost.measured.above, 0);

  const auto engine = NewEngineWith(kDearLayers);
  const Answer pruned = Ask(engine.get(), prompt, kPrune);
  EXPECT_EQ(pruned.logits, unforeseen.logits);
  const PruneCostAccount& cost = Pruning(pruned).cost;
  ASSERT_TRUE(cost.forecast.has_value());
  EXPECT_TRUE(cost.forecast->pays());
  EXPECT_EQ(cost.forecast->first_layer, 2);
  EXPECT_EQ(cost.forecast->last_layer, 2);
  // Two layers of all tokens; the third, and last, of what stayed.
  const auto n = static_cast<double>(prompt.tokens.size());
  const double kept = n - static_cast<double>(Pruning(pruned).policy.removed_tokens);
  ASSERT_TRUE(cost.predicted.has_value());
  EXPECT_DOUBLE_EQ(cost.predicted->below, 2 * (1e-3 * n + 1e-6 * n * n));
  EXPECT_DOUBLE_EQ(cost.predicted->above, 1e-4 * kept);
  EXPECT_GT(cost.predicted->auxiliary, 0);
  EXPECT_GT(cost.measured.below, 0);
  EXPECT_GT(cost.measured.above, 0);
  EXPECT_GT(cost.measured.auxiliary, 0);
  EXPECT_LE(cost.ideal_low, cost.ideal_share);
  EXPECT_LE(cost.ideal_share, cost.ideal_high);
  EXPECT_DOUBLE_EQ(cost.ideal_low, (1 - 2.0 / 3) * (1 - kept / n));

  // The next question computes two layers of itself only, and is foreseen to.
  DocumentPrompt second = prompt;
  std::ranges::copy(RandomTokens(kQuestion, 78), second.tokens.begin() + kDocuments);
  const Answer resumed = Ask(engine.get(), second, kPrune);
  ASSERT_GT(Pruning(resumed).resumed_tokens, 0);
  EXPECT_LT(Pruning(resumed).cost.forecast->full, 0.3 * cost.forecast->full);
  EXPECT_TRUE(std::isnan(Pruning(resumed).cost.ideal_share));
}

TEST_F(PruningEngine, EverythingComesBackWhereNothingMayBeDropped) {
  const auto engine = NewEngineWith(kDearLayers);
  const DocumentPrompt prompt = MakePrompt(16);
  const Answer pruned = Ask(engine.get(), prompt, kPrune);
  ASSERT_EQ(Pruning(pruned).policy.outcome, PruneOutcome::kPruned);
  Answer whole;
  Request request = RequestOf(prompt, kPrune, &whole);
  request.keep_all = true;
  whole.result = engine->Run(std::move(request));
  EXPECT_EQ(whole.logits, Ask(NewEngine().get(), prompt, "dense").logits);
  EXPECT_EQ(Pruning(whole).policy.outcome, PruneOutcome::kZeroTarget);
  EXPECT_EQ(Pruning(whole).policy.reason, "the request keeps everything");
  EXPECT_EQ(Pruning(whole).resumed_layers, 2);
  EXPECT_GT(Pruning(whole).resumed_tokens, kDocuments - 32);
  EXPECT_LT(Pruning(whole).rows_computed, Pruning(whole).rows_dense / 2);
  EXPECT_FALSE(Pruning(whole).cost.forecast.has_value());
  ASSERT_TRUE(Pruning(whole).cost.predicted.has_value());
  EXPECT_LT(Pruning(whole).cost.predicted->below, Pruning(pruned).cost.predicted->below / 2);
}

TEST_F(PruningEngine, PinnedChunksStay) {
  DocumentPrompt prompt = MakePrompt(9);
  for (Span& span : prompt.spans) span.pinned = span.chunk == 3 || span.chunk == 11;
  const Answer answer = Ask(NewEngine().get(), prompt, kPrune);
  ASSERT_EQ(Pruning(answer).policy.outcome, PruneOutcome::kPruned);
  for (const PruneChunkAccount& chunk : Pruning(answer).policy.chunks) {
    EXPECT_NE(chunk.first, kSystem + 3 * kChunk);
    EXPECT_NE(chunk.first, kSystem + 11 * kChunk);
  }
}

TEST_F(PruningEngine, AChunkWithASinkStays) {
  const DocumentPrompt prompt = MakePrompt(9);
  const Answer answer =
      Ask(NewEngine().get(), prompt, kPrune + ",sinks=" + std::to_string(kSystem + 1));
  ASSERT_EQ(Pruning(answer).policy.outcome, PruneOutcome::kPruned);
  EXPECT_EQ(Pruning(answer).policy.chunks.front().first, kSystem + kChunk);
  const Answer all = Ask(NewEngine().get(), prompt, kPrune + ",sinks=100000");
  EXPECT_EQ(Pruning(all).policy.outcome, PruneOutcome::kNoCandidates);
}

TEST_F(PruningEngine, DroppedKeysLeaveTheLayersBelowToo) {
  const DocumentPrompt prompt = MakePrompt(10);
  const Answer keep = Ask(NewEngine().get(), prompt, kPrune);
  const Answer drop = Ask(NewEngine().get(), prompt, kPrune + ",pruned_kv=drop");
  EXPECT_EQ(drop.logits[0], keep.logits[0]);  // of the prefill itself
  EXPECT_NE(drop.logits[1], keep.logits[1]);
  EXPECT_LT(drop.result.kv_bytes, keep.result.kv_bytes);
  EXPECT_LT(drop.result.ledger.decode.attention.tokens_resident,
            keep.result.ledger.decode.attention.tokens_resident);
  EXPECT_EQ(Pruning(drop).parked_bytes, 0);
  EXPECT_EQ(Pruning(drop).layers_compacted, 2);
}

TEST_F(PruningEngine, PrunedPagesAreNobodyElses) {
  const auto engine = NewEngine();
  const DocumentPrompt prompt = MakePrompt(11);
  for (const char* kv : {"keep", "drop"}) {
    Ask(engine.get(), prompt, kPrune + ",pruned_kv=" + kv);
    EXPECT_EQ(Ask(engine.get(), prompt, "dense").logits,
              Ask(NewEngine().get(), prompt, "dense").logits);
    engine->ClearPrefixes();
  }
  // Chunks that every layer holds already are no candidates.
  Ask(engine.get(), prompt, "dense");
  const Answer cached = Ask(engine.get(), prompt, kPrune);
  EXPECT_EQ(Pruning(cached).policy.outcome, PruneOutcome::kNoCandidates);
}

TEST_F(PruningEngine, MemoryThatIsNeededTakesWhatIsParked) {
  EngineOptions options;
  options.kv_dtype = DType::kF32;
  options.prefill_chunk = 64;
  options.kv_bytes = 0;
  options.context_tokens = 400;  // one such sequence fits
  Engine engine(&backbone_, nullptr, &pool_, options);
  for (uint64_t seed = 20; seed < 24; ++seed) {
    const DocumentPrompt prompt = MakePrompt(seed);
    EXPECT_EQ(Ask(&engine, prompt, kPrune).logits, Ask(NewEngine().get(), prompt, kPrune).logits);
  }
}

TEST_F(PruningEngine, ANumberThatIsNoneBypassesAndSaysSo) {
  const DocumentPrompt prompt = MakePrompt(12);
  const int64_t spoiled = std::ssize(prompt.tokens) - 1;
  backbone_.on_key_value = [&](int layer, int32_t position, std::span<float> key,
                               std::span<float> /*value*/) {
    if (layer == 1 && position == spoiled) key[0] = std::nanf("");
  };
  const auto engine = NewEngine();
  const Answer answer = Ask(engine.get(), prompt, kPrune);
  EXPECT_EQ(answer.result.finish_reason, FinishReason::kFailed);  // the last row's attention is NaN
}

TEST_F(PruningEngine, RefusesWhatItCannotDo) {
  const auto engine = NewEngine();
  Answer answer;
  const DocumentPrompt no_question = MakePrompt(13, 0);
  const RequestResult result = engine->Run(RequestOf(no_question, kPrune, &answer));
  EXPECT_EQ(result.finish_reason, FinishReason::kFailed);
  EXPECT_EQ(result.error_kind, ErrorKind::kInput);
  // No profile, and layers that are not there.
  for (const char* arm : {"prefill=entroprefill", "prefill=entroprefill,uncalibrated=1,layers=9"}) {
    testing::ExpectError([&] { engine->Submit(RequestOf(MakePrompt(13), arm, &answer)); },
                         ErrorKind::kUsage, "");
  }
}

}  // namespace
}  // namespace winnow
