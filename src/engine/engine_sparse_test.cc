// Requests that read few tokens: the same bits as dense where everything is read, an account of
// what was not, and prefixes that never mix.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "model/backbone.h"
#include "policy/arm.h"
#include "testing/fake_backbone.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

using ::winnow::testing::FakeBackbone;
using ::winnow::testing::FakeShape;

const std::string kFast = "select=sketch,budget=64,dense_layers=0";
const std::string kFaithful = "select=sketch,budget=64,residual=sketch";

std::vector<TokenId> RandomTokens(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.Below(101));
  return tokens;
}

struct Answer {
  RequestResult result;
  std::vector<std::vector<float>> logits;
};

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

  static Request NewRequest(const std::vector<TokenId>& tokens, const std::string& arm,
                            int64_t n_new, Answer* run) {
    Request request;
    request.tokens = tokens;
    request.arm = arm;
    request.max_new_tokens = n_new;
    request.on_logits = [run](int64_t /*index*/, std::span<const float> row) {
      run->logits.emplace_back(row.begin(), row.end());
    };
    return request;
  }

  static Answer Generate(Engine* engine, const std::vector<TokenId>& tokens, const std::string& arm,
                         int64_t n_new = 40) {
    Answer run;
    run.result = engine->Run(NewRequest(tokens, arm, n_new, &run));
    engine->CheckInvariants();
    return run;
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
