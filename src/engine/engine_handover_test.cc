// Prompts that one engine reads and another answers, by way of a file of pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/answer_test.h"
#include "engine/document_prompt_test.h"
#include "engine/engine.h"
#include "engine/handover.h"
#include "kv/kv_file.h"
#include "policy/arm.h"
#include "testing/expect_error.h"
#include "testing/fake_backbone.h"
#include "testing/paths.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::winnow::testing::Answer;
using ::winnow::testing::DocumentPrompt;
using ::winnow::testing::ExpectError;
using ::winnow::testing::FakeBackbone;
using ::winnow::testing::FakeShape;
using ::winnow::testing::kPrune;
using ::winnow::testing::MakePrompt;

constexpr int64_t kNew = 12;
const std::string kSparse = "select=meanstd,budget=64,dense_layers=0,super=2,residual=cumulant";

class Handover : public ::testing::Test {
 protected:
  explicit Handover(const FakeShape& shape = {.context_length = 1024}) : backbone_(shape) {}

  EngineOptions Options(DType dtype = DType::kF32) const {
    EngineOptions options;
    options.kv_dtype = dtype;
    options.prefill_chunk = 64;
    options.planes = ArmPlanes({kSparse});
    return options;
  }
  std::unique_ptr<Engine> NewEngine(const EngineOptions& options) {
    return std::make_unique<Engine>(&backbone_, nullptr, &pool_, options);
  }
  std::unique_ptr<Engine> NewEngine(DType dtype = DType::kF32) { return NewEngine(Options(dtype)); }

  Request RequestOf(const DocumentPrompt& prompt, const std::string& arm, Answer* answer) const {
    Request request = testing::NewRequest(prompt.tokens, arm, kNew, answer);
    request.spans = prompt.spans;
    request.sampling = sampling_;
    return request;
  }
  Request LoadRequest(const std::string& arm, Answer* answer) const {
    Request request = RequestOf({}, arm, answer);
    request.load_kv = path_;
    return request;
  }
  static Answer Finish(Engine* engine, Request request, Answer* answer) {
    answer->result = engine->Run(std::move(request));
    engine->CheckInvariants();
    return std::move(*answer);
  }
  Answer Ask(Engine* engine, const DocumentPrompt& prompt, const std::string& arm) {
    Answer answer;
    return Finish(engine, RequestOf(prompt, arm, &answer), &answer);
  }
  Answer Save(Engine* engine, const DocumentPrompt& prompt, const std::string& arm) {
    Answer answer;
    Request request = RequestOf(prompt, arm, &answer);
    request.save_kv = path_;
    return Finish(engine, std::move(request), &answer);
  }
  Answer Load(Engine* engine, const std::string& arm) {
    Answer answer;
    return Finish(engine, LoadRequest(arm, &answer), &answer);
  }

  // An answer in one process, and by two.
  void ExpectSameAnswer(const DocumentPrompt& prompt, const std::string& prefill_arm,
                        const std::string& decode_arm, DType dtype = DType::kF32) {
    SCOPED_TRACE(prefill_arm + " + " + decode_arm + ", " + std::string(DTypeName(dtype)));
    const std::string joined = prefill_arm == "dense"  ? decode_arm
                               : decode_arm == "dense" ? prefill_arm
                                                       : prefill_arm + "," + decode_arm;
    const Answer whole = Ask(NewEngine(dtype).get(), prompt, joined);
    const Answer saved = Save(NewEngine(dtype).get(), prompt, prefill_arm);
    ASSERT_EQ(saved.result.finish_reason, FinishReason::kMaxTokens) << saved.result.error;
    ASSERT_EQ(saved.result.tokens.size(), 1u);
    const Answer loaded = Load(NewEngine(dtype).get(), decode_arm);
    EXPECT_EQ(loaded.result.error, "");
    EXPECT_EQ(loaded.result.tokens, whole.result.tokens);
    EXPECT_EQ(loaded.result.finish_reason, whole.result.finish_reason);
    EXPECT_EQ(loaded.result.prompt_tokens, whole.result.prompt_tokens);
    // The first token's logits stay with the prefill.
    EXPECT_EQ(saved.logits[0], whole.logits[0]);
    EXPECT_EQ(loaded.logits, std::vector(whole.logits.begin() + 1, whole.logits.end()));
    EXPECT_EQ(loaded.result.ledger.decode.attention.tokens_read,
              whole.result.ledger.decode.attention.tokens_read);
    ExpectAccounted(*saved.result.kv_transfer);
    ExpectAccounted(*loaded.result.kv_transfer);
  }
  void ExpectAccounted(const KvTransfer& transfer) const {
    EXPECT_EQ(transfer.payload_bytes + transfer.metadata_bytes,
              static_cast<int64_t>(fs::file_size(path_)));
    EXPECT_EQ(transfer.payload_bytes, transfer.formula_bytes + transfer.scale_bytes);
    EXPECT_LE(transfer.formula_bytes, transfer.unpruned_bytes);
    EXPECT_GT(transfer.pages, 0);
    EXPECT_GT(transfer.seconds, 0);
  }

  ThreadPool pool_{2};
  FakeBackbone backbone_;
  SamplingParams sampling_;
  const std::string folder_ = testing::TemporaryFolder();
  const std::string path_ = folder_ + "/prompt.kv";
};

TEST_F(Handover, TheAnswerIsThatOfOneProcess) {
  const DocumentPrompt prompt = MakePrompt(1);
  for (const char* prefill : {"dense", kPrune.c_str()}) {
    for (const char* decode : {"dense", kSparse.c_str()}) ExpectSameAnswer(prompt, prefill, decode);
  }
  const std::string drop = kPrune + ",pruned_kv=drop";
  ExpectSameAnswer(prompt, drop, "dense");
  for (const DType dtype : {DType::kF16, DType::kQ8_0}) {
    ExpectSameAnswer(prompt, drop, kSparse, dtype);
  }
}

TEST_F(Handover, ItIsWhereAnythingIsDrawnToo) {
  sampling_ = {.temperature = 3, .top_k = 0, .seed = 7, .repeat_penalty = 1.3};
  const DocumentPrompt prompt = MakePrompt(2);
  ExpectSameAnswer(prompt, "dense", "dense");
  sampling_.top_k = 1;  // nothing to choose from, and still a number of the generator
  ExpectSameAnswer(prompt, "dense", "dense");
}

TEST_F(Handover, PrunedPagesAreFewer) {
  const DocumentPrompt prompt = MakePrompt(3);
  const auto transfer = [&](const std::string& arm) {
    return *Save(NewEngine().get(), prompt, arm).result.kv_transfer;
  };
  const KvTransfer dense = transfer("dense");
  const KvTransfer kept = transfer(kPrune);
  const KvTransfer dropped = transfer(kPrune + ",pruned_kv=drop");
  EXPECT_EQ(dense.formula_bytes, dense.unpruned_bytes);
  EXPECT_EQ(kept.unpruned_bytes, dense.unpruned_bytes);
  EXPECT_LT(dropped.payload_bytes, kept.payload_bytes);
  EXPECT_LT(kept.payload_bytes, dense.payload_bytes);
  EXPECT_EQ(dense.scale_bytes, 0);
  const KvTransfer q8 = *Save(NewEngine(DType::kQ8_0).get(), prompt, "dense").result.kv_transfer;
  // Two bytes for 32 of one byte each.
  EXPECT_EQ(q8.scale_bytes * 16, q8.formula_bytes);
  EXPECT_EQ(q8.formula_bytes * 4, dense.formula_bytes);
}

class HandoverLocal : public Handover {
 protected:
  HandoverLocal() : Handover({.context_length = 1024, .windows = {0, 40, 0}}) {}
};

TEST_F(HandoverLocal, WindowsGoOnWhereTheyWere) {
  const DocumentPrompt prompt = MakePrompt(4);
  ExpectSameAnswer(prompt, "dense", "dense");
  ExpectSameAnswer(prompt, "dense", kSparse);
  std::string early = kPrune;
  early.replace(early.find("layers=2"), 8, "layers=1");
  ExpectSameAnswer(prompt, early, "dense");
  ExpectSameAnswer(prompt, early + ",pruned_kv=drop", kSparse);
}

TEST_F(Handover, OthersInTheBatchGoOnUndisturbed) {
  const DocumentPrompt prompts[] = {MakePrompt(5), MakePrompt(6)};
  const Answer alone = Ask(NewEngine().get(), prompts[0], "dense");
  const Answer whole = Ask(NewEngine().get(), prompts[1], kPrune + "," + kSparse);
  Save(NewEngine().get(), prompts[1], kPrune);
  const auto engine = NewEngine();
  Answer other;
  Answer loaded;
  engine->Submit(RequestOf(prompts[0], "dense", &other));
  for (int step = 0; step < 20; ++step) engine->Step();
  engine->Submit(LoadRequest(kSparse, &loaded));
  while (engine->active_requests() > 0) {
    engine->Step();
    engine->CheckInvariants();
  }
  EXPECT_EQ(other.logits, alone.logits);
  EXPECT_EQ(loaded.logits, std::vector(whole.logits.begin() + 1, whole.logits.end()));
}

TEST_F(Handover, OnlyDensePagesAreRemembered) {
  const DocumentPrompt prompt = MakePrompt(7);
  const Answer dense = Ask(NewEngine().get(), prompt, "dense");
  const int64_t all = (std::ssize(prompt.tokens) - 1) / 32 * 32;
  for (const std::string& arm : {std::string("dense"), kPrune, kPrune + ",pruned_kv=drop"}) {
    const Answer saved = Save(NewEngine().get(), prompt, arm);
    const auto engine = NewEngine();
    Load(engine.get(), "dense");
    const Answer again = Ask(engine.get(), prompt, "dense");
    EXPECT_EQ(again.logits, dense.logits) << arm;
    int64_t first_dropped = std::ssize(prompt.tokens);
    if (arm != "dense") {
      for (const PruneChunkAccount& chunk : saved.result.ledger.pruning->policy.chunks) {
        if (!chunk.kept) first_dropped = std::min(first_dropped, chunk.first);
      }
      ASSERT_LT(first_dropped, std::ssize(prompt.tokens));
    }
    EXPECT_EQ(again.result.reused_tokens, std::min(all, first_dropped / 32 * 32)) << arm;
  }
}

TEST_F(Handover, AFileIsCompleteOrNotThere) {
  const auto engine = NewEngine();
  Answer answer;
  Request request = RequestOf(MakePrompt(8), "dense", &answer);
  request.save_kv = path_;
  const RequestId id = engine->Submit(std::move(request));
  for (int step = 0; step < 4; ++step) engine->Step();
  engine->Cancel(id);
  while (engine->Step()) {
  }
  EXPECT_EQ(engine->TakeResult(id)->finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(fs::is_empty(folder_));
  // In place of another one, and again where that one's prefix is resident.
  const DocumentPrompt prompt = MakePrompt(9);
  Save(engine.get(), MakePrompt(8), "dense");
  Save(engine.get(), prompt, "dense");
  Save(engine.get(), prompt, "dense");
  EXPECT_EQ(Load(NewEngine().get(), "dense").result.tokens,
            Ask(NewEngine().get(), prompt, "dense").result.tokens);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

class HandoverRefusals : public Handover {
 protected:
  void SetUp() override { Save(NewEngine().get(), prompt_, "dense"); }
  void ExpectRefused(const EngineOptions& options, const std::string& arm, ErrorKind kind,
                     const std::string& part) {
    Answer answer;
    ExpectError([&] { NewEngine(options)->Submit(LoadRequest(arm, &answer)); }, kind, part);
  }
  void ExpectRefused(Request request, ErrorKind kind, const std::string& part) {
    ExpectError([&] { NewEngine()->Submit(std::move(request)); }, kind, part);
  }

  const DocumentPrompt prompt_ = MakePrompt(10);
};

TEST_F(HandoverRefusals, OtherModelsAndPages) {
  EngineOptions options = Options(DType::kF16);
  ExpectRefused(options, "dense", ErrorKind::kInput, "f32 in the file, f16 here");
  options = Options();
  options.page_slots = 16;
  ExpectRefused(options, "dense", ErrorKind::kInput, "tokens of a page");
  options = Options();
  options.model_path = folder_ + "/model";
  std::ofstream(options.model_path) << "weights";
  ExpectRefused(options, "dense", ErrorKind::kInput, "it is of the model with hash 0000");
  options = Options();
  options.context_tokens = 200;
  ExpectRefused(options, "dense", ErrorKind::kInput, "the context holds 200");
  options.context_tokens = 0;
  options.kv_bytes = 1 << 16;
  ExpectRefused(options, "dense", ErrorKind::kResource, "would fit");
}

TEST_F(HandoverRefusals, ArmsThatNeedWhatIsNotThere) {
  ExpectRefused(Options(), kPrune, ErrorKind::kUsage, "cannot prune");
  ExpectRefused(Options(), "select=meanstd,budget=64,residual=resa", ErrorKind::kUsage,
                "queries of every prompt token");
  EngineOptions options = Options();
  options.planes = {};
  ExpectRefused(options, kSparse, ErrorKind::kUsage, "do not keep");
}

TEST_F(HandoverRefusals, RequestsThatWantAPrefill) {
  Answer answer;
  const auto request = [&](const auto& change) {
    Request r = LoadRequest("dense", &answer);
    change(r);
    return r;
  };
  const auto refused = [&](Request r, const std::string& part) {
    ExpectRefused(std::move(r), ErrorKind::kUsage, part);
  };
  refused(request([&](Request& r) { r.tokens = {1}; }), "there can be no other");
  refused(request([&](Request& r) { r.save_kv = path_; }), "not saved again");
  refused(request([&](Request& r) { r.forced_tokens = {1}; }), "cannot be forced");
  refused(request([&](Request& r) { r.on_prompt_logits = [](int64_t, std::span<const float>) {}; }),
          "no prefill to watch");
  Request nowhere = RequestOf(prompt_, "dense", &answer);
  nowhere.save_kv = folder_ + "/no/such/folder.kv";
  ExpectRefused(std::move(nowhere), ErrorKind::kResource, "cannot write");
}

TEST_F(HandoverRefusals, DamagedPagesFailTheRequest) {
  std::string bytes;
  {
    std::ifstream stream(path_, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(stream), {});
  }
  bytes[bytes.size() - 100] ^= 1;
  std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  const auto engine = NewEngine();
  const RequestResult result = Load(engine.get(), "dense").result;
  EXPECT_EQ(result.finish_reason, FinishReason::kFailed);
  EXPECT_EQ(result.error_kind, ErrorKind::kInput);
  EXPECT_THAT(result.error, HasSubstr("its pages are damaged"));
  EXPECT_TRUE(result.tokens.empty());
  // The engine goes on.
  EXPECT_EQ(Ask(engine.get(), prompt_, "dense").logits,
            Ask(NewEngine().get(), prompt_, "dense").logits);
}

TEST_F(HandoverRefusals, FilesThatNoPrefillWrote) {
  const PageLayout layout(2, 32, 32, DType::kF32);
  PagePool pool(layout, 100);
  SequenceKv kv(&pool, 3);
  std::vector<int32_t> positions(70);
  std::iota(positions.begin(), positions.end(), 0);
  for (int layer = 0; layer < 3; ++layer) ASSERT_TRUE(kv.Append(layer, positions));
  const HandoverNote good = {
      .first_token = 5, .arm = "dense", .dense_tokens = 70, .kept_tokens = 70};
  const auto refused = [&](const std::string& note, const std::string& part) {
    SaveKvFile(path_, kv, {.tokens = std::vector<int32_t>(70, 1), .note = note});
    ExpectRefused(Options(), "dense", ErrorKind::kInput, part);
  };
  refused("", "it is no JSON object");
  refused("{}", "it has no 'first_token'");
  const auto changed = [&](const auto& change) {
    HandoverNote note = good;
    change(note);
    return ToText(note);
  };
  refused(changed([](HandoverNote& note) { note.first_token = 101; }), "from 0 to 100");
  refused(changed([](HandoverNote& note) { note.kept_tokens = 71; }), "'kept_tokens'");
  refused(changed([](HandoverNote& note) { note.pruned_layer = -1; }), "'pruned_layer'");
  std::string text = ToText(good);
  refused(text.replace(text.find("false"), 5, "\"no\""), "'drop_kv' must be true or false");
  kv.ReleaseBefore(1, 32);
  refused(ToText(good), "layer 2 lacks its first 32 tokens");
}

}  // namespace
}  // namespace winnow
