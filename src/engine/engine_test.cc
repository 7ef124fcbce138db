// The engine over a small plain model: scheduling, pages, prefixes, batches, failures.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "kv/page_layout.h"
#include "testing/fake_backbone.h"

namespace winnow {
namespace {

using ::winnow::testing::FakeBackbone;
using ::winnow::testing::FakeLogits;
using ::winnow::testing::FakeShape;

std::vector<TokenId> RandomTokens(int64_t n, uint64_t seed, int vocabulary = 101) {
  Rng rng(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.Below(vocabulary));
  return tokens;
}

struct Generated {
  RequestResult result;
  std::vector<std::vector<float>> logits;  // of each generated token
};

// A request that keeps the logits of what it draws in `out`.
Request Recording(std::vector<TokenId> tokens, int64_t n_new, Generated* out) {
  Request request;
  request.tokens = std::move(tokens);
  request.max_new_tokens = n_new;
  request.on_logits = [out](int64_t /*index*/, std::span<const float> row) {
    out->logits.emplace_back(row.begin(), row.end());
  };
  return request;
}

Generated Generate(Engine* engine, std::vector<TokenId> tokens, int64_t n_new) {
  Generated out;
  out.result = engine->Run(Recording(std::move(tokens), n_new, &out));
  engine->CheckInvariants();
  return out;
}

// The logits agree within float noise. 32 terms a dot product at |x| of order 1 and three layers
// give errors of about 1e-5; f32 KV keeps the cache exact.
void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, double tolerance = 2e-4) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "at " << i;
}

// Token streams may part only where the two best logits were closer than twice the noise between
// them.
void ExpectSameUpToTies(const Generated& a, const Generated& b) {
  const auto& x = a.result.tokens;
  const auto& y = b.result.tokens;
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    double noise = 0;
    for (size_t j = 0; j < a.logits[i].size(); ++j) {
      noise = std::max(noise, std::abs(static_cast<double>(a.logits[i][j]) - b.logits[i][j]));
    }
    if (x[i] == y[i]) continue;
    EXPECT_LT(std::abs(a.logits[i][x[i]] - a.logits[i][y[i]]), 2 * noise) << "token " << i;
    return;
  }
}

EngineOptions Exact() { return {.kv_dtype = DType::kF32, .prefill_chunk = 64}; }

class EngineTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  FakeBackbone backbone_{FakeShape{}};
};

TEST_F(EngineTest, GreedyTokensAndLogitsAreThoseOfThePlainModel) {
  for (const std::vector<int64_t>& windows :
       {std::vector<int64_t>{}, std::vector<int64_t>{40, 0, 40}}) {
    FakeShape shape;
    shape.windows = windows;
    FakeBackbone backbone(shape);
    Engine engine(&backbone, nullptr, &pool_, Exact());
    for (int64_t n : {1, 2, 31, 32, 33, 64, 65, 200}) {
      const std::vector<TokenId> prompt = RandomTokens(n, n);
      const Generated out = Generate(&engine, prompt, 40);
      ASSERT_EQ(out.result.finish_reason, FinishReason::kMaxTokens);
      ASSERT_EQ(out.result.tokens.size(), 40u);
      std::vector<TokenId> all = prompt;
      all.insert(all.end(), out.result.tokens.begin(), out.result.tokens.end());
      const auto expected = FakeLogits(&backbone, all);
      for (size_t i = 0; i < out.logits.size(); ++i) {
        ExpectNear(out.logits[i], expected[n - 1 + i]);
      }
    }
  }
}

TEST_F(EngineTest, PromptLogitsOfEveryPosition) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  const std::vector<TokenId> prompt = RandomTokens(150, 5);
  const auto expected = FakeLogits(&backbone_, prompt);
  int64_t next = 0;
  Request request;
  request.tokens = prompt;
  request.max_new_tokens = 1;
  request.on_prompt_logits = [&](int64_t position, std::span<const float> row) {
    ASSERT_EQ(position, next++);
    ExpectNear({row.begin(), row.end()}, expected[position]);
  };
  engine.Run(std::move(request));
  EXPECT_EQ(next, 150);
}

TEST_F(EngineTest, AnyChunkSizeAndAnyReuseGiveTheSameTokens) {
  const std::vector<TokenId> prompt = RandomTokens(230, 9);
  EngineOptions options = Exact();
  options.prefix_reuse = false;
  Engine plain(&backbone_, nullptr, &pool_, options);
  const Generated expected = Generate(&plain, prompt, 30);
  for (int64_t chunk : {1, 7, 32, 100, 256}) {
    options.prefill_chunk = chunk;
    options.prefix_reuse = true;
    Engine engine(&backbone_, nullptr, &pool_, options);
    const Generated first = Generate(&engine, prompt, 30);
    EXPECT_EQ(first.result.reused_tokens, 0);
    ExpectSameUpToTies(expected, first);
    const Generated second = Generate(&engine, prompt, 30);
    EXPECT_EQ(second.result.reused_tokens, 224);  // seven full pages; the last token is computed
    ExpectSameUpToTies(expected, second);
  }
}

TEST_F(EngineTest, AConversationReusesItsOwnAnswer) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  std::vector<TokenId> history = RandomTokens(50, 3);
  const Generated first = Generate(&engine, history, 60);
  history.insert(history.end(), first.result.tokens.begin(), first.result.tokens.end());
  history.push_back(7);
  const Generated second = Generate(&engine, history, 5);
  EXPECT_EQ(second.result.reused_tokens, 96);  // of 109 stored tokens, whole pages
  engine.ClearPrefixes();
  EXPECT_EQ(Generate(&engine, history, 5).result.reused_tokens, 0);
}

TEST_F(EngineTest, LocalLayersReuseOnlyAResidentWindow) {
  FakeShape shape;
  shape.windows = {40, 0, 40};
  FakeBackbone backbone(shape);
  Engine engine(&backbone, nullptr, &pool_, Exact());
  const std::vector<TokenId> prompt = RandomTokens(300, 11);
  const Generated first = Generate(&engine, prompt, 2);
  // The whole prompt again: its window is resident at its end.
  EXPECT_EQ(Generate(&engine, prompt, 2).result.reused_tokens, 288);
  // A short prefix: its window was released long ago, so nothing may be reused.
  std::vector<TokenId> branch(prompt.begin(), prompt.begin() + 100);
  branch.push_back(1);
  const Generated second = Generate(&engine, branch, 2);
  EXPECT_EQ(second.result.reused_tokens, 0);
  ExpectNear(second.logits[0], FakeLogits(&backbone, branch).back());
}

TEST_F(EngineTest, BatchNeighboursChangeNoBit) {
  EngineOptions options = Exact();
  options.prefix_reuse = false;
  std::vector<Generated> alone(4);
  for (size_t i = 0; i < alone.size(); ++i) {
    Engine engine(&backbone_, nullptr, &pool_, options);
    alone[i] = Generate(&engine, RandomTokens(20 + 37 * i, i), 25);
  }
  Engine engine(&backbone_, nullptr, &pool_, options);
  std::vector<Generated> together(4);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < together.size(); ++i) {
    ids.push_back(engine.Submit(Recording(RandomTokens(20 + 37 * i, i), 25, &together[i])));
  }
  while (engine.Step()) engine.CheckInvariants();
  for (size_t i = 0; i < together.size(); ++i) {
    const auto result = engine.TakeResult(ids[i]);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->tokens, alone[i].result.tokens);
    EXPECT_EQ(together[i].logits, alone[i].logits);
  }
}

TEST_F(EngineTest, SameSeedSameTokensAndAnotherSeedOthers) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  const auto draw = [&](uint32_t seed) {
    Request request;
    request.tokens = RandomTokens(40, 1);
    request.max_new_tokens = 50;
    request.sampling = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
    return engine.Run(std::move(request)).tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST_F(EngineTest, RepeatPenaltyAlsoActsOnGreedySampling) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  const auto run = [&](float penalty) {
    Request request;
    request.tokens = RandomTokens(10, 2);
    request.max_new_tokens = 60;
    request.sampling.repeat_penalty = penalty;
    request.sampling.penalty_last_n = -1;
    return engine.Run(std::move(request)).tokens;
  };
  const auto distinct = [](std::vector<TokenId> tokens) {
    std::sort(tokens.begin(), tokens.end());
    return std::unique(tokens.begin(), tokens.end()) - tokens.begin();
  };
  EXPECT_GT(distinct(run(100.0f)), distinct(run(1.0f)));
}

TEST_F(EngineTest, ForcedTokensPassTheirDecodeSteps) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  const std::vector<TokenId> prompt = RandomTokens(70, 3);
  const std::vector<TokenId> forced = {5, 5, 100, 0, 41};
  Generated out;
  Request request = Recording(prompt, 8, &out);
  request.forced_tokens = forced;
  out.result = engine.Run(std::move(request));
  ASSERT_EQ(out.result.tokens.size(), 8u);
  EXPECT_TRUE(std::equal(forced.begin(), forced.end(), out.result.tokens.begin()));
  EXPECT_EQ(out.result.ledger.decode.tokens, 7);  // the first token needs no decode step
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), out.result.tokens.begin(), out.result.tokens.end());
  const auto expected = FakeLogits(&backbone_, all);
  for (size_t i = 0; i < out.logits.size(); ++i) ExpectNear(out.logits[i], expected[69 + i]);
  // Behind the forced ones the model goes on by itself, from its own logits.
  for (size_t i = forced.size(); i < 8; ++i) {
    const auto& row = out.logits[i];
    EXPECT_EQ(out.result.tokens[i], std::max_element(row.begin(), row.end()) - row.begin());
  }
  // Penalties look back on them as well: of all tokens only one was not there yet.
  Request penalised;
  penalised.tokens = {1, 2};
  for (TokenId token = 0; token < 101; ++token) {
    if (token != 17) penalised.forced_tokens.push_back(token);
  }
  penalised.sampling.presence_penalty = 1000;
  penalised.sampling.penalty_last_n = -1;
  penalised.max_new_tokens = 101;
  EXPECT_EQ(engine.Run(std::move(penalised)).tokens.back(), 17);

  Request outside;
  outside.tokens = prompt;
  outside.forced_tokens = {101};
  EXPECT_THROW(engine.Submit(std::move(outside)), Error);
}

TEST_F(EngineTest, MemoryAdmitsOneAfterTheOtherAndAllFinish) {
  EngineOptions options = Exact();
  const PageLayout layout(2, 32, 32, DType::kF32);
  options.kv_bytes = static_cast<int64_t>(layout.page_bytes) * 3 * 9;  // nine pages a layer
  Engine engine(&backbone_, nullptr, &pool_, options);
  std::vector<Generated> outs(5);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < outs.size(); ++i) {
    ids.push_back(engine.Submit(Recording(RandomTokens(100 + 10 * i, i), 40, &outs[i])));
  }
  while (engine.Step()) engine.CheckInvariants();
  for (size_t i = 0; i < outs.size(); ++i) {
    const auto result = engine.TakeResult(ids[i]);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->finish_reason, FinishReason::kMaxTokens) << result->error;
    Engine fresh(&backbone_, nullptr, &pool_, Exact());
    EXPECT_EQ(result->tokens, Generate(&fresh, RandomTokens(100 + 10 * i, i), 40).result.tokens);
  }
}

TEST_F(EngineTest, CancelKeepsWhatWasGenerated) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  // In mid-prefill.
  Request request;
  request.tokens = RandomTokens(300, 1);
  RequestId id = 0;
  int calls = 0;
  request.on_prefill = [&](const PrefillProgress& progress) {
    EXPECT_LE(progress.tokens_done, progress.tokens_total);
    if (++calls == 3) engine.Cancel(id);
  };
  id = engine.Submit(std::move(request));
  while (engine.Step()) engine.CheckInvariants();
  EXPECT_EQ(calls, 3);
  auto result = engine.TakeResult(id);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(result->tokens.empty());

  // In mid-decode.
  Request decoding;
  decoding.tokens = RandomTokens(30, 2);
  decoding.on_logits = [&](int64_t index, std::span<const float> /*row*/) {
    if (index == 4) engine.Cancel(id);
  };
  id = engine.Submit(std::move(decoding));
  while (engine.Step()) engine.CheckInvariants();
  result = engine.TakeResult(id);
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result->tokens.size(), 5u);
  EXPECT_FALSE(engine.TakeResult(id).has_value());
  engine.Cancel(12345);  // unknown: ignored
  EXPECT_FALSE(engine.Step());
}

TEST_F(EngineTest, AFailedStepIsRolledBackAndFailsTheNewestOnly) {
  EngineOptions options = Exact();
  options.prefix_reuse = false;
  Engine reference(&backbone_, nullptr, &pool_, options);
  const Generated expected = Generate(&reference, RandomTokens(30, 1), 20);

  Engine engine(&backbone_, nullptr, &pool_, options);
  Generated first;
  Generated second;
  const RequestId a = engine.Submit(Recording(RandomTokens(30, 1), 20, &first));
  const RequestId b = engine.Submit(Recording(RandomTokens(50, 2), 20, &second));
  bool failed = false;
  backbone_.on_attention_input = [&](int layer, int64_t n, int32_t position) {
    if (n == 2 && layer == 1 && position == 40 && !failed) {
      failed = true;
      throw std::runtime_error("played failure");
    }
  };
  while (engine.Step()) engine.CheckInvariants();
  backbone_.on_attention_input = nullptr;
  EXPECT_TRUE(failed);
  const auto result_a = engine.TakeResult(a);
  const auto result_b = engine.TakeResult(b);
  EXPECT_EQ(result_b->finish_reason, FinishReason::kFailed);
  EXPECT_EQ(result_b->error, "played failure");
  EXPECT_EQ(result_a->finish_reason, FinishReason::kMaxTokens);
  EXPECT_EQ(result_a->tokens, expected.result.tokens);
  EXPECT_EQ(first.logits, expected.logits);
  // What the failed step read is not counted twice.
  EXPECT_EQ(result_a->ledger.decode.attention.bytes_read,
            expected.result.ledger.decode.attention.bytes_read);
}

TEST_F(EngineTest, AFailedPrefillFailsThatRequest) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  backbone_.on_attention_input = [](int layer, int64_t /*n*/, int32_t /*position*/) {
    if (layer == 2) throw std::runtime_error("played failure");
  };
  Request request;
  request.tokens = RandomTokens(100, 1);
  EXPECT_EQ(engine.Run(request).error, "played failure");
  backbone_.on_attention_input = nullptr;
  engine.CheckInvariants();
  EXPECT_EQ(engine.Run(request).finish_reason, FinishReason::kMaxTokens);
}

TEST_F(EngineTest, LogitsThatAreNotFiniteFailTheRequestAndSayWhere) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  int rows = 0;
  backbone_.on_logits = [&](std::span<float> row) {
    if (++rows == 3) row[5] = std::numeric_limits<float>::quiet_NaN();
  };
  Request request;
  request.tokens = RandomTokens(10, 1);
  const RequestResult result = engine.Run(std::move(request));
  EXPECT_EQ(result.finish_reason, FinishReason::kFailed);
  EXPECT_THAT(result.error, ::testing::HasSubstr("after token 12 are not finite"));
  EXPECT_EQ(result.tokens.size(), 2u);
}

TEST_F(EngineTest, LongAnswersOfLocalLayersAreRemembered) {
  FakeShape shape;
  shape.windows = {40, 0, 40};
  FakeBackbone backbone(shape);
  Engine engine(&backbone, nullptr, &pool_, Exact());
  std::vector<TokenId> history = RandomTokens(70, 3);
  const Generated first = Generate(&engine, history, 200);  // its first pages are released by then
  ASSERT_EQ(first.result.finish_reason, FinishReason::kMaxTokens);
  history.insert(history.end(), first.result.tokens.begin(), first.result.tokens.end());
  const Generated second = Generate(&engine, history, 3);
  EXPECT_EQ(second.result.reused_tokens, 256);  // of 269 stored tokens
  ExpectNear(second.logits[0], FakeLogits(&backbone, history).back());
}

TEST_F(EngineTest, SequencesThatTurnThePageTogetherAllFindOne) {
  EngineOptions options = Exact();
  const PageLayout layout(2, 32, 32, DType::kF32);
  // Four sequences of two pages a layer fill the pool; what an earlier one left has to give way.
  options.kv_bytes = static_cast<int64_t>(layout.page_bytes) * 3 * 8;
  Engine engine(&backbone_, nullptr, &pool_, options);
  EXPECT_EQ(Generate(&engine, RandomTokens(200, 99), 40).result.finish_reason,
            FinishReason::kMaxTokens);
  std::vector<RequestId> ids;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Request request;
    request.tokens = RandomTokens(20, seed);
    request.max_new_tokens = 40;
    ids.push_back(engine.Submit(std::move(request)));
  }
  while (engine.Step()) engine.CheckInvariants();
  for (const RequestId id : ids) {
    EXPECT_EQ(engine.TakeResult(id)->finish_reason, FinishReason::kMaxTokens);
  }
}

TEST_F(EngineTest, TheSecondOfTwoEqualPromptsFindsTheFirstOnesPages) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  Request request;
  request.tokens = RandomTokens(100, 1);
  request.max_new_tokens = 3;
  const RequestId first = engine.Submit(request);
  const RequestId second = engine.Submit(request);
  while (engine.Step()) engine.CheckInvariants();
  EXPECT_EQ(engine.TakeResult(first)->reused_tokens, 0);
  EXPECT_EQ(engine.TakeResult(second)->reused_tokens, 96);
}

TEST_F(EngineTest, ACallbackThatThrowsFailsItsRequestOnly) {
  EngineOptions options = Exact();
  options.prefix_reuse = false;
  Engine reference(&backbone_, nullptr, &pool_, options);
  const Generated expected = Generate(&reference, RandomTokens(30, 1), 20);

  Engine engine(&backbone_, nullptr, &pool_, options);
  Request bad;
  bad.tokens = RandomTokens(30, 7);
  bad.on_logits = [](int64_t index, std::span<const float> /*row*/) {
    if (index == 5) throw std::runtime_error("played failure");
  };
  const RequestId bad_id = engine.Submit(std::move(bad));
  Generated good;
  const RequestId good_id = engine.Submit(Recording(RandomTokens(30, 1), 20, &good));
  Request at_once;
  at_once.tokens = RandomTokens(30, 8);
  at_once.on_prefill = [](const PrefillProgress& /*progress*/) { throw std::bad_alloc(); };
  const RequestId at_once_id = engine.Submit(std::move(at_once));
  while (engine.Step()) engine.CheckInvariants();
  const auto bad_result = engine.TakeResult(bad_id);
  EXPECT_EQ(bad_result->finish_reason, FinishReason::kFailed);
  EXPECT_EQ(bad_result->error, "played failure");
  EXPECT_FALSE(bad_result->error_kind.has_value());
  EXPECT_EQ(engine.TakeResult(at_once_id)->error_kind, ErrorKind::kResource);
  EXPECT_EQ(engine.TakeResult(good_id)->tokens, expected.result.tokens);
}

TEST_F(EngineTest, AWaitingRequestCanBeCancelled) {
  EngineOptions options = Exact();
  options.max_batch = 1;
  Engine engine(&backbone_, nullptr, &pool_, options);
  Request request;
  request.tokens = RandomTokens(40, 1);
  request.max_new_tokens = 5;
  engine.Cancel(2);  // not submitted yet: unknown
  const RequestId first = engine.Submit(request);
  const RequestId second = engine.Submit(request);
  ASSERT_EQ(second, 2);
  const RequestId third = engine.Submit(request);
  engine.Step();
  engine.Cancel(third);
  while (engine.Step()) engine.CheckInvariants();
  EXPECT_EQ(engine.TakeResult(first)->finish_reason, FinishReason::kMaxTokens);
  EXPECT_EQ(engine.TakeResult(second)->finish_reason, FinishReason::kMaxTokens);
  EXPECT_EQ(engine.TakeResult(third)->finish_reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, AnAnswerWithoutALimitEndsWithTheContext) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  Request request;
  request.tokens = RandomTokens(500, 1);
  request.max_new_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(engine.Run(std::move(request)).finish_reason, FinishReason::kContextFull);
}

TEST_F(EngineTest, TheContextsEndEndsTheAnswer) {
  EngineOptions options = Exact();
  options.context_tokens = 64;
  Engine engine(&backbone_, nullptr, &pool_, options);
  const Generated out = Generate(&engine, RandomTokens(60, 1), 100);
  EXPECT_EQ(out.result.finish_reason, FinishReason::kContextFull);
  EXPECT_EQ(out.result.tokens.size(), 5u);  // 64 stored and the last one drawn
}

TEST_F(EngineTest, TheRecordCountsWhatWasRead) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  const Generated out = Generate(&engine, RandomTokens(40, 1), 3);
  const PhaseLedger& decode = out.result.ledger.decode;
  EXPECT_EQ(out.result.ledger.prefill.tokens, 40);
  EXPECT_EQ(decode.tokens, 2);
  // Two steps over 41 and 42 tokens in three layers, two KV heads of 32 floats, keys and values.
  EXPECT_EQ(decode.attention.tokens_read, 3 * (41 + 42));
  EXPECT_EQ(decode.attention.bytes_read, 3 * (41 + 42) * 2 * 2 * 32 * 4);
  EXPECT_EQ(decode.attention.bytes_dense, decode.attention.bytes_read);
  EXPECT_GT(decode.seconds.total(), 0);
}

void ExpectError(ErrorKind kind, const std::string& part, const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << "no error; expected one that says: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

TEST_F(EngineTest, BadRequestsAreRefusedWithTheReason) {
  Engine engine(&backbone_, nullptr, &pool_, Exact());
  const auto submit = [&](const std::function<void(Request*)>& spoil) {
    return [&engine, spoil] {
      Request request;
      request.tokens = {1, 2, 3};
      spoil(&request);
      engine.Submit(std::move(request));
    };
  };
  using enum ErrorKind;
  ExpectError(kInput, "prompt is empty", submit([](Request* r) { r->tokens.clear(); }));
  ExpectError(kInput, "token 101", submit([](Request* r) { r->tokens.push_back(101); }));
  ExpectError(kInput, "token -1", submit([](Request* r) { r->tokens.push_back(-1); }));
  ExpectError(kInput, "600 tokens and the context holds 512",
              submit([](Request* r) { r->tokens.assign(600, 1); }));
  ExpectError(kUsage, "did you mean 'dense'", submit([](Request* r) { r->arm = "dens"; }));
  ExpectError(kUsage, "top-p", submit([](Request* r) { r->sampling.top_p = 0; }));
  ExpectError(kUsage, "min-p", submit([](Request* r) { r->sampling.min_p = 1; }));
  ExpectError(kUsage, "temperature", submit([](Request* r) { r->sampling.temperature = NAN; }));
  ExpectError(kUsage, "4294967295", submit([](Request* r) { r->sampling.seed = 4294967295U; }));
  ExpectError(kUsage, "repeat", submit([](Request* r) { r->sampling.repeat_penalty = 0; }));
  ExpectError(kUsage, "new token", submit([](Request* r) { r->max_new_tokens = 0; }));
  EXPECT_EQ(engine.active_requests(), 0);
}

TEST_F(EngineTest, BadOptionsAreRefusedWithWhatWouldFit) {
  const auto make = [&](const std::function<void(EngineOptions*)>& spoil) {
    return [this, spoil] {
      EngineOptions options = Exact();
      spoil(&options);
      Engine engine(&backbone_, nullptr, &pool_, options);
    };
  };
  using enum ErrorKind;
  ExpectError(kUsage, "takes 1 to 512", make([](EngineOptions* o) { o->context_tokens = 513; }));
  ExpectError(kUsage, "prefill chunk", make([](EngineOptions* o) { o->prefill_chunk = 0; }));
  ExpectError(kUsage, "batch", make([](EngineOptions* o) { o->max_batch = 0; }));
  ExpectError(kResource, "would fit", make([](EngineOptions* o) { o->kv_bytes = 1LL << 50; }));
  ExpectError(kResource, "hold no token", make([](EngineOptions* o) { o->kv_bytes = 1000; }));

  EngineOptions options = Exact();
  const PageLayout layout(2, 32, 32, DType::kF32);
  options.kv_bytes = static_cast<int64_t>(layout.page_bytes) * 3 * 2;
  Engine small(&backbone_, nullptr, &pool_, options);
  ExpectError(kResource, "64 tokens would fit", [&] {
    Request request;
    request.tokens = RandomTokens(100, 1);
    small.Submit(std::move(request));
  });
}

}  // namespace
}  // namespace winnow
