// Requests that read few tokens: the same bits as dense where everything is read, an account of
// what was not, and prefixes that never mix.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "engine/answer_test.h"
#include "engine/engine.h"
#include "ledger/ledger.h"
#include "model/backbone.h"
#include "policy/arm.h"
#include "testing/fake_backbone.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

using ::winnow::testing::Answer;
using ::winnow::testing::FakeBackbone;
using ::winnow::testing::FakeShape;
using ::winnow::testing::Generate;
using ::winnow::testing::NewRequest;
using ::winnow::testing::RandomTokens;

const std::string kFast = "select=sketch,budget=64,dense_layers=0";
const std::string kFaithful = "select=sketch,budget=64,residual=sketch";

class SparseEngine : public ::testing::Test {
 protected:
  explicit SparseEngine(const FakeShape& shape = {.context_length = 1024}) : backbone_(shape) {}

  std::unique_ptr<Engine> NewEngine(const std::vector<std::string>& arms,
                                    DType dtype = DType::kF32) {
    EngineOptions options;
    options.kv_dtype = dtype;
    options.prefill_chunk = 64;
    options.planes = ArmPlanes(arms);
    return std::make_unique<Engine>(&backbone_, nullptr, &pool_, options);
  }

  ThreadPool pool_{2};
  FakeBackbone backbone_;
};

TEST_F(SparseEngine, ReadingEverythingGivesDensesBits) {
  const std::vector<std::string> arms = {"select=all", "select=all,dense_layers=0",
                                         "select=sketch,budget=4096,dense_layers=0",
                                         "select=sketch,budget=4096,residual=sketch"};
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const auto engine = NewEngine(arms, dtype);
    const std::vector<TokenId> tokens = RandomTokens(500, 1);
    const Answer dense = Generate(engine.get(), tokens, "dense");
    for (const std::string& arm : arms) {
      const Answer sparse = Generate(engine.get(), tokens, arm);
      EXPECT_EQ(sparse.result.tokens, dense.result.tokens) << arm;
      EXPECT_EQ(sparse.logits, dense.logits) << arm;
      const AttentionAccount& account = sparse.result.ledger.decode.attention;
      EXPECT_EQ(account.tokens_read, account.tokens_resident) << arm;
      EXPECT_GT(account.layers_sparse, 0) << arm;
    }
  }
}

TEST_F(SparseEngine, AutoIsDenseBelowTheBreakEvenAndItsArmFromThereOn) {
  EngineOptions options;
  options.kv_dtype = DType::kF16;
  options.prefill_chunk = 64;
  options.auto_arm = {.arm = kFast, .source = "a profile", .break_even_tokens = 500};
  Engine engine(&backbone_, nullptr, &pool_, options);
  const std::vector<TokenId> tokens = RandomTokens(500, 11);
  const std::vector<TokenId> shorter(tokens.begin(), tokens.end() - 1);

  // It stays dense, though the answer grows beyond the break-even.
  const Answer below = Generate(&engine, shorter, "auto");
  const Answer dense = Generate(&engine, shorter, "dense");
  EXPECT_EQ(below.result.arm_resolved, "dense");
  EXPECT_EQ(below.result.arm_reason,
            "a prompt of 499 tokens: a profile pays from 500 on this machine");
  EXPECT_EQ(below.logits, dense.logits);
  EXPECT_EQ(below.result.ledger.decode.attention.layers_sparse, 0);
  // What it wrote is dense, so that others may use it: all but the last page, which is not full.
  EXPECT_EQ(dense.result.reused_tokens, 480);

  const Answer above = Generate(&engine, tokens, "auto");
  EXPECT_EQ(above.result.arm_resolved, ParseArm(kFast).resolved);
  EXPECT_EQ(above.result.arm_reason, "a profile, which pays from 500 tokens on this machine");
  EXPECT_LT(above.result.ledger.decode.attention.tokens_read,
            above.result.ledger.decode.attention.tokens_resident);
  EXPECT_EQ(above.logits, Generate(&engine, tokens, kFast).logits);
  EXPECT_EQ(Generate(&engine, tokens, kFast).result.arm_reason, "");
}

TEST_F(SparseEngine, PlanesOfAutoAreKeptOnlyWhereItMayBeSparse) {
  EngineOptions options;
  options.prefill_chunk = 64;
  options.auto_arm = {.arm = kFast, .source = "a profile", .break_even_tokens = 500};
  options.kv_bytes = int64_t{1} << 22;
  const auto kv_bytes = [&](int64_t context_tokens) {
    options.context_tokens = context_tokens;
    Engine engine(&backbone_, nullptr, &pool_, options);
    return Generate(&engine, RandomTokens(64, 12), "auto", 1).result.kv_bytes;
  };
  EXPECT_GT(kv_bytes(512), kv_bytes(500));
  options.auto_arm = {};
  const int64_t without = kv_bytes(512);
  EXPECT_EQ(kv_bytes(500), without);
}

TEST_F(SparseEngine, GatesTurnCompletionOff) {
  const std::string none = "select=sketch,budget=64,dense_layers=0,residual=none";
  for (const char* with : {"sketch", "centroid"}) {
    const auto gated = [&](const std::string& off) {
      return std::string("select=sketch,budget=64,dense_layers=0,residual=") + with + off;
    };
    const auto engine = NewEngine({none, gated("")});
    const std::vector<TokenId> tokens = RandomTokens(600, 13);
    const auto run = [&](const std::string& arm) { return Generate(engine.get(), tokens, arm); };
    const Answer open = run(gated(""));
    const Answer closed = run(gated(",off=1+2+3"));
    // Completing nothing is dropping.
    EXPECT_EQ(closed.logits, run(none).logits) << with;
    EXPECT_EQ(closed.result.ledger.decode.attention.bytes_estimated, 0) << with;
    EXPECT_EQ(closed.result.ledger.decode.attention.mass_estimated, 0) << with;
    const Answer some = run(gated(",off=2.1"));
    EXPECT_NE(some.logits, open.logits) << with;
    EXPECT_NE(some.logits, closed.logits) << with;
    EXPECT_LT(some.result.ledger.decode.attention.bytes_estimated,
              open.result.ledger.decode.attention.bytes_estimated)
        << with;
  }
}

TEST_F(SparseEngine, TheLedgerShowsWhatWasNotRead) {
  const auto engine = NewEngine({kFast, kFaithful});
  const std::vector<TokenId> tokens = RandomTokens(700, 2);
  for (const std::string& arm : {kFast, kFaithful}) {
    const AttentionAccount account =
        Generate(engine.get(), tokens, arm).result.ledger.decode.attention;
    EXPECT_LT(account.tokens_read, account.tokens_resident / 2);
    EXPECT_LT(account.bytes_read, account.bytes_dense);
    EXPECT_EQ(account.layers_dense, 0);
    EXPECT_EQ(account.layers_sparse, 3 * 39);
    EXPECT_EQ(account.mass_heads, 4 * account.layers_sparse);
    const double sum = account.mass_exact + account.mass_estimated + account.mass_dropped;
    EXPECT_NEAR(sum, static_cast<double>(account.mass_heads), 1e-6 * sum);
    EXPECT_EQ(account.bytes_estimated > 0, arm == kFaithful);
    EXPECT_EQ(account.mass_estimated > 0, arm == kFaithful);
    EXPECT_GT(account.bytes_scanned, 0);
  }
  const AttentionAccount dense =
      Generate(engine.get(), tokens, "dense").result.ledger.decode.attention;
  EXPECT_EQ(dense.layers_sparse, 0);
  EXPECT_EQ(dense.tokens_read, dense.tokens_resident);
  EXPECT_EQ(dense.mass_heads, 0);
}

TEST_F(SparseEngine, EverySelectorAndSolverShowsWhatItDidNotRead) {
  const std::vector<std::string> arms = {"select=vashista,P=2,Kc=20",
                                         "select=vashista,P=2,Kc=20,residual=centroid",
                                         "select=exact,budget=20",
                                         "select=exact,budget=20,residual=centroid",
                                         "select=entrokv,quota=6",
                                         "select=cascade,P=4,super=1,budget=64",
                                         "select=vashista,P=2,Kc=20,solver=fw",
                                         "select=sketch,budget=64,solver=eg,eps=0.5"};
  const auto engine = NewEngine(arms, DType::kF16);
  // More than two super-pages.
  const std::vector<TokenId> tokens = RandomTokens(970, 8);
  for (const std::string& arm : arms) {
    const Answer answer = Generate(engine.get(), tokens, arm, 12);
    const AttentionAccount& account = answer.result.ledger.decode.attention;
    EXPECT_LT(account.tokens_read, account.tokens_resident) << arm;
    EXPECT_GT(account.tokens_read, 0) << arm;
    EXPECT_LT(account.bytes_read, account.bytes_dense) << arm;
    for (const auto& row : answer.logits) EXPECT_TRUE(std::isfinite(row[0])) << arm;
    const bool solves = arm.find("solver") != std::string::npos;
    EXPECT_EQ(account.solver.problems, solves ? 4 * account.layers_sparse : 0) << arm;
    const nlohmann::ordered_json sparse = ToJson(answer.result.ledger.decode)["sparse"];
    EXPECT_EQ(sparse.contains("solver"), solves) << arm;
    if (solves) {
      EXPECT_EQ(sparse["mass_kind"], "not_applicable") << arm;
      EXPECT_GT(sparse["solver"]["iterations"], 0) << arm;
      EXPECT_EQ(account.mass_heads, 0) << arm;
    } else if (arm.find("cascade") == std::string::npos) {
      const double sum = account.mass_exact + account.mass_estimated + account.mass_dropped;
      EXPECT_EQ(account.mass_heads, 4 * account.layers_sparse) << arm;
      EXPECT_NEAR(sum, static_cast<double>(account.mass_heads), 1e-5 * sum) << arm;
    }
  }
}

TEST_F(SparseEngine, EstimatingTheRestComesCloserToDenseThanDroppingIt) {
  const auto engine = NewEngine({kFast, kFaithful});
  double fast_error = 0;
  double faithful_error = 0;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const std::vector<TokenId> tokens = RandomTokens(600, seed);
    const Answer dense = Generate(engine.get(), tokens, "dense", 2);
    const Answer fast = Generate(engine.get(), tokens, kFast, 2);
    const Answer faithful = Generate(engine.get(), tokens, kFaithful, 2);
    for (size_t i = 0; i < dense.logits[1].size(); ++i) {
      fast_error += std::abs(fast.logits[1][i] - dense.logits[1][i]);
      faithful_error += std::abs(faithful.logits[1][i] - dense.logits[1][i]);
    }
  }
  EXPECT_LT(faithful_error, 0.5 * fast_error);
}

TEST_F(SparseEngine, TheSameSeedDrawsTheSameTokens) {
  const std::vector<TokenId> tokens = RandomTokens(500, 7);
  for (const std::string& arm : {kFast, kFaithful, std::string("select=random,seed=3")}) {
    std::vector<std::vector<TokenId>> drawn;
    for (const uint32_t seed : {5U, 5U, 6U}) {
      const auto engine = NewEngine({kFast, kFaithful});
      Answer answer;
      Request request = NewRequest(tokens, arm, 40, &answer);
      request.sampling = {.temperature = 1, .seed = seed};
      drawn.push_back(engine->Run(request).tokens);
    }
    EXPECT_EQ(drawn[0], drawn[1]) << arm;
    EXPECT_NE(drawn[0], drawn[2]) << arm;
  }
}

TEST_F(SparseEngine, CertificatesAndWhatTheyReadAreTheSameEveryTime) {
  const std::vector<TokenId> tokens = RandomTokens(600, 8);
  for (const std::string certify :
       {"sketch", "sketch,bits=4", "deterministic", "sample,n=50,seed=3"}) {
    for (const std::string tol : {"", ",tol=0.02"}) {
      const std::string arm = fmt::format("{}{},certify={}", kFast, tol, certify);
      const Answer answers[] = {Generate(NewEngine({arm}).get(), tokens, arm, 10),
                                Generate(NewEngine({arm}).get(), tokens, arm, 10)};
      EXPECT_EQ(answers[0].result.tokens, answers[1].result.tokens) << arm;
      EXPECT_EQ(answers[0].logits, answers[1].logits) << arm;
      const PhaseLedger& ledger = answers[0].result.ledger.decode;
      const AttentionAccount& account = ledger.attention;
      EXPECT_EQ(account.statements.hi, answers[1].result.ledger.decode.attention.statements.hi);
      EXPECT_EQ(account.statements.intervals, 4 * account.layers_sparse) << arm;
      EXPECT_GT(account.bytes_certified, 0);
      // Steps and heads add up to the whole.
      EXPECT_EQ(ledger.steps.size(), 9U);
      double of_steps = 0;
      for (const StepLedger& step : ledger.steps) of_steps += step.hi;
      double of_heads = 0;
      for (const HeadAccount& head : account.heads) of_heads += head.hi;
      EXPECT_EQ(account.heads.size(), 3U * 2);
      EXPECT_NEAR(of_steps, account.statements.hi, 1e-9 * of_steps);
      EXPECT_NEAR(of_heads, account.statements.hi, 1e-9 * of_heads);
      if (!tol.empty()) {
        EXPECT_GT(account.widened_certificate, 0) << arm;
        EXPECT_LE(account.statements.hi_max, 2 * 0.02) << arm;  // the mean of two heads is below
      }
    }
  }
}

// A NaN in one page: the request that holds it fails and says where, the other gives what it gives
// alone.
TEST_F(SparseEngine, ANanInAPageFailsItsRequestOnly) {
  for (const std::string& arm : {kFast, kFaithful, kFast + ",certify=sketch"}) {
    const Answer alone = Generate(NewEngine({arm}).get(), RandomTokens(500, 10), arm);
    const auto engine = NewEngine({arm});
    int spoiled = 0;
    backbone_.on_key_value = [&](int layer, int32_t position, std::span<float> keys,
                                 std::span<float>) {
      if (layer == 1 && position == 70 && spoiled++ == 0) {
        keys[3] = std::numeric_limits<float>::quiet_NaN();
      }
    };
    Answer bad;
    Answer good;
    const RequestId bad_id = engine->Submit(NewRequest(RandomTokens(400, 9), arm, 40, &bad));
    const RequestId good_id = engine->Submit(NewRequest(RandomTokens(500, 10), arm, 40, &good));
    while (engine->Step()) {
    }
    backbone_.on_key_value = nullptr;
    const RequestResult failed = *engine->TakeResult(bad_id);
    EXPECT_EQ(failed.finish_reason, FinishReason::kFailed) << arm;
    EXPECT_NE(failed.error.find("after token 400 are not finite"), std::string::npos)
        << failed.error;
    EXPECT_NE(failed.error.find("in layer 2 (from 1) and KV head 0 (from 0), a key or value of "
                                "position 70, in the page of positions 64 to 95"),
              std::string::npos)
        << failed.error;
    EXPECT_EQ(engine->TakeResult(good_id)->tokens, alone.result.tokens) << arm;
    EXPECT_EQ(good.logits, alone.logits) << arm;
  }
}

TEST_F(SparseEngine, PagesThatDoNotKeepASketchRefuseTheArm) {
  const auto engine = NewEngine({"dense"});
  Request request;
  request.tokens = RandomTokens(10, 3);
  request.arm = kFast;
  try {
    engine->Submit(request);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  }
  request.arm = "select=recent";
  EXPECT_NO_THROW(engine->Submit(request));
}

TEST_F(SparseEngine, ArmsShareDensePagesAndNothingElse) {
  const auto engine = NewEngine({kFast});
  const std::vector<TokenId> tokens = RandomTokens(320, 4);
  const Answer first = Generate(engine.get(), tokens, kFast, 70);
  // A second turn: the prompt, the answer, more text.
  std::vector<TokenId> turn = tokens;
  turn.insert(turn.end(), first.result.tokens.begin(), first.result.tokens.end());
  const std::vector<TokenId> more = RandomTokens(40, 5);
  turn.insert(turn.end(), more.begin(), more.end());
  // 320 prompt tokens are ten pages; the answer's 69 stored ones fill two more.
  EXPECT_EQ(Generate(engine.get(), turn, kFast).result.reused_tokens, 384);
  const Answer dense = Generate(engine.get(), turn, "dense");
  EXPECT_EQ(dense.result.reused_tokens, 320);
  // Another parameter is another arm: it reuses what dense just left, not the first answer's pages.
  EXPECT_EQ(Generate(engine.get(), turn, kFast + ",recent=32", 2).result.reused_tokens, 416);
  EXPECT_EQ(Generate(engine.get(), tokens, "dense", 2).result.reused_tokens, 288);
  const auto fresh = NewEngine({});
  EXPECT_EQ(dense.logits, Generate(fresh.get(), turn, "dense").logits);
}

TEST_F(SparseEngine, AnotherParameterIsAnotherArm) {
  const auto engine = NewEngine({kFast});
  const std::vector<TokenId> tokens = RandomTokens(320, 4);
  std::vector<TokenId> turn = tokens;
  const Answer first = Generate(engine.get(), tokens, kFast, 70);
  turn.insert(turn.end(), first.result.tokens.begin(), first.result.tokens.end());
  EXPECT_EQ(Generate(engine.get(), turn, kFast + ",recent=32", 2).result.reused_tokens, 320);
  // It read the rest of its prompt densely: those pages, up to 384, are for everybody.
  const Answer dense = Generate(engine.get(), turn, "dense");
  EXPECT_EQ(dense.result.reused_tokens, 384);
  EXPECT_EQ(dense.logits, Generate(NewEngine({}).get(), turn, "dense").logits);
}

TEST_F(SparseEngine, SequencesOfOneBatchGiveWhatTheyGiveAlone) {
  const std::vector<std::string> arms = {"dense", kFast, kFaithful, kFast};
  const auto together = NewEngine(arms);
  std::vector<Answer> runs(arms.size());
  std::vector<RequestId> ids;
  for (size_t i = 0; i < arms.size(); ++i) {
    ids.push_back(together->Submit(
        NewRequest(RandomTokens(300 + 50 * static_cast<int64_t>(i), i), arms[i], 40, &runs[i])));
  }
  while (together->Step()) {
  }
  for (size_t i = 0; i < arms.size(); ++i) {
    const auto alone = NewEngine(arms);
    const Answer run =
        Generate(alone.get(), RandomTokens(300 + 50 * static_cast<int64_t>(i), i), arms[i]);
    EXPECT_EQ(together->TakeResult(ids[i])->tokens, run.result.tokens) << arms[i];
    EXPECT_EQ(runs[i].logits, run.logits) << arms[i];
  }
}

// An f32 cache holds what a sketch cannot.
TEST_F(SparseEngine, WhatASketchCannotHoldIsReadExactly) {
  const std::vector<TokenId> tokens = RandomTokens(500, 8);
  for (const bool spoil_key : {true, false}) {
    backbone_.on_key_value = [&](int, int32_t position, std::span<float> key,
                                 std::span<float> value) {
      if (position == 100) (spoil_key ? key : value)[3] = 1e5F;  // of head 0
    };
    const auto engine = NewEngine({kFast, kFaithful});
    for (const std::string& arm : {kFast, kFaithful}) {
      const Answer answer = Generate(engine.get(), tokens, arm);
      EXPECT_EQ(answer.result.finish_reason, FinishReason::kMaxTokens) << answer.result.error;
      const AttentionAccount& account = answer.result.ledger.decode.attention;
      // One of the two KV heads of every layer and step.
      EXPECT_EQ(account.fallback_not_finite, account.layers_sparse) << arm;
      EXPECT_LT(account.tokens_read, account.tokens_resident) << arm;
    }
  }
}

TEST_F(SparseEngine, ANumberThatIsNoneFailsItsRequestAlone) {
  const auto engine = NewEngine({kFast, kFaithful});
  for (const bool spoil_key : {true, false}) {
    for (const std::string& arm : {kFast, kFaithful}) {
      // A token of the answer, for the prompt is read densely; position 290 is of the first request
      // only.
      backbone_.on_key_value = [&](int, int32_t position, std::span<float> key,
                                   std::span<float> value) {
        if (position == 290) (spoil_key ? key : value)[3] = std::nanf("");
      };
      Answer bad;
      Answer good;
      const RequestId bad_id = engine->Submit(NewRequest(RandomTokens(280, 9), arm, 40, &bad));
      const RequestId good_id = engine->Submit(NewRequest(RandomTokens(200, 9), arm, 40, &good));
      while (engine->Step()) {
      }
      const RequestResult failed = *engine->TakeResult(bad_id);
      EXPECT_EQ(failed.finish_reason, FinishReason::kFailed);
      EXPECT_EQ(failed.error_kind, ErrorKind::kInput);
      EXPECT_EQ(
          failed.error,
          "the model's logits after token 291 are not finite: nor is, in layer 1 (from 1) and "
          "KV head 0 (from 0), a key or value of position 290, in the page of positions 288 "
          "to 290");
      EXPECT_EQ(failed.tokens.size(), 11u);
      EXPECT_EQ(engine->TakeResult(good_id)->finish_reason, FinishReason::kMaxTokens);
    }
  }
}

class SparseEngineOfWideHeads : public SparseEngine {
 protected:
  SparseEngineOfWideHeads() : SparseEngine({.head_dim = 576, .context_length = 1024}) {}
};

TEST_F(SparseEngineOfWideHeads, ASketchRefusesHeadsThatAreTooWide) {
  try {
    NewEngine({"select=cascade"});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("576"), std::string::npos) << error.what();
  }
  const std::string arm = "select=vashista,budget=64,dense_layers=0,residual=centroid";
  const Answer answer = Generate(NewEngine({arm}).get(), RandomTokens(500, 1), arm, 4);
  const AttentionAccount& account = answer.result.ledger.decode.attention;
  EXPECT_LT(account.tokens_read, account.tokens_resident);
}

class SparseEngineWithWindows : public SparseEngine {
 protected:
  SparseEngineWithWindows() : SparseEngine({.context_length = 1024, .windows = {48, 0, 48}}) {}
};

TEST_F(SparseEngineWithWindows, LocalLayersReadTheirWindow) {
  const auto engine = NewEngine({kFaithful});
  const Answer run = Generate(engine.get(), RandomTokens(600, 6), kFaithful);
  const AttentionAccount& account = run.result.ledger.decode.attention;
  EXPECT_EQ(account.layers_sparse, 39);
  EXPECT_EQ(account.layers_dense, 2 * 39);
  for (const auto& row : run.logits) EXPECT_TRUE(std::isfinite(row[0]));
}

// On ggml's kernels. Of Q8_0 weights a row is the same bits whatever the batch, so what a sequence
// gives alone is what it gives beside others.
class SparseEngineOnGguf : public SparseEngine {
 protected:
  std::unique_ptr<Backbone> Load(testing::TinyGguf model) {
    const std::string path = testing::TemporaryFolder() + "/tiny.gguf";
    model.weight_type = "q8_0";
    model.head_dim = 32;
    model.context_length = 1024;
    testing::WriteTinyGguf(path, model);
    return LoadCpuBackbone(path, &pool_);
  }

  // Requests of these arms, in one batch or one after the other.
  std::vector<Answer> Answers(Backbone* backbone, DType dtype, const std::vector<std::string>& arms,
                              bool together) {
    EngineOptions options;
    options.kv_dtype = dtype;
    options.planes = ArmPlanes(arms);
    Engine engine(backbone, nullptr, &pool_, options);
    std::vector<Answer> answers(arms.size());
    std::vector<RequestId> ids;
    for (size_t i = 0; i < arms.size(); ++i) {
      const std::vector<TokenId> tokens = RandomTokens(250 + 30 * static_cast<int64_t>(i), i);
      ids.push_back(engine.Submit(NewRequest(tokens, arms[i], 20, &answers[i])));
      while (!together && engine.Step()) {
      }
    }
    while (engine.Step()) {
    }
    for (size_t i = 0; i < arms.size(); ++i) answers[i].result = *engine.TakeResult(ids[i]);
    engine.CheckInvariants();
    return answers;
  }
};

TEST_F(SparseEngineOnGguf, ABatchThatReadsEverythingGivesDensesBits) {
  const auto backbone = Load({});
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const auto dense = Answers(backbone.get(), dtype, {"dense", "dense", "dense"}, true);
    const auto all = Answers(
        backbone.get(), dtype,
        {"select=all", "select=sketch,budget=4096,residual=sketch", "select=all,dense_layers=0"},
        true);
    for (size_t i = 0; i < dense.size(); ++i) EXPECT_EQ(all[i].logits, dense[i].logits) << i;
  }
}

TEST_F(SparseEngineOnGguf, SequencesOfOneBatchGiveWhatTheyGiveAlone) {
  for (const char* architecture : {"llama", "gemma3"}) {
    // Every sixth layer of gemma3 is global.
    const auto backbone = Load({.architecture = architecture, .n_layers = 6, .window = 64});
    const std::vector<std::string> arms = {kFaithful, "dense", kFast, kFaithful};
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      const auto together = Answers(backbone.get(), dtype, arms, true);
      const auto alone = Answers(backbone.get(), dtype, arms, false);
      for (size_t i = 0; i < arms.size(); ++i) {
        EXPECT_EQ(together[i].result.tokens, alone[i].result.tokens) << architecture << i;
        EXPECT_EQ(together[i].logits, alone[i].logits) << architecture << i;
        const AttentionAccount& account = together[i].result.ledger.decode.attention;
        EXPECT_EQ(account.tokens_read < account.tokens_resident, arms[i] != "dense");
      }
    }
  }
}

}  // namespace
}  // namespace winnow
