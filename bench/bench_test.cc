// The runner's rows, with a backbone in plain loops and with tiny models that libllama loads too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/bench_runner.h"
#include "bench/bench_side.h"
#include "bench/peer_llama.h"
#include "core/error.h"
#include "core/rng.h"
#include "testing/expect_error.h"
#include "testing/fake_backbone.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFields[] = {
    "engine",  "arm",        "device",      "n_threads",      "n_prompt",   "n_gen",
    "n_depth", "n_batch",    "avg_ts",      "median_ts",      "stddev_ts",  "samples_ts",
    "ttft_ms", "bytes_read", "bytes_dense", "peak_rss_bytes", "flash_attn", "kv_unified"};

constexpr auto kNoProgress = [](std::string_view /*what*/) {};

BenchOptions SmallOptions() {
  BenchOptions options;
  options.prompts = {40};
  options.generate = {4};
  options.depths = {0, 70};
  options.batches = {1, 3};
  options.repetitions = 3;
  options.engine.prefill_chunk = 32;
  return options;
}

std::string ErrorOf(const BenchSubject& subject, const BenchOptions& options) {
  try {
    RunBench(subject, options, kNoProgress);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class BenchRunner : public ::testing::Test {
 protected:
  testing::FakeBackbone backbone_{{}};
  ThreadPool pool_{2};
  BenchSubject subject_{.backbone = &backbone_, .tokenizer = nullptr, .pool = &pool_};
};

TEST_F(BenchRunner, MakesARowForEachTestAndArm) {
  BenchOptions options = SmallOptions();
  options.arms = {"auto", "dense"};
  const std::vector<BenchRow> rows = RunBench(subject_, options, kNoProgress);
  ASSERT_EQ(rows.size(), 2u * (1 + 2 * 2));
  EXPECT_EQ(rows[0].arm, "auto");
  EXPECT_EQ(rows[1].arm, "dense");
  EXPECT_EQ(rows[0].n_prompt, 40);
  EXPECT_EQ(rows.back().n_depth, 70);
  EXPECT_EQ(rows.back().n_batch, 3);
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.engine, "winnow");
    EXPECT_EQ(row.n_threads, 2);
    EXPECT_EQ(row.samples_ts.size(), 3u);
    for (const double sample : row.samples_ts) EXPECT_GT(sample, 0);
    EXPECT_EQ(row.ttft_ms.has_value(), row.n_prompt > 0);
    EXPECT_GT(row.peak_rss_bytes.value(), 0);
    EXPECT_FALSE(row.flash_attn.has_value());
  }
}

TEST_F(BenchRunner, HasRoomForTheSketchesOfTheArmAuto) {
  BenchOptions options = SmallOptions();
  options.depths = {300};
  options.arms = {"auto"};
  options.engine.auto_arm = {.arm = "select=sketch,budget=32,residual=sketch", .source = "a test"};
  const std::vector<BenchRow> rows = RunBench(subject_, options, kNoProgress);
  EXPECT_LT(rows.back().bytes_read.value(), rows.back().bytes_dense.value());
}

TEST_F(BenchRunner, DecodesAtTheDepthAskedFor) {
  BenchOptions options = SmallOptions();
  options.prompts = {};
  options.depths = {200};
  const std::vector<BenchRow> rows = RunBench(subject_, options, kNoProgress);
  // 3 layers of 2 KV heads of 32 f16 keys and values: 768 bytes a cached token. The steps are at
  // 201 .. 204 tokens, of each sequence of a batch too.
  ASSERT_EQ(rows.size(), 2u);
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.bytes_read.value(), 768 * 405 / 2);
    EXPECT_EQ(row.bytes_read, row.bytes_dense);
  }
}

TEST_F(BenchRunner, ComputesInProportionToTheBatch) {
  int64_t n_rows = 0;
  backbone_.on_attention_input = [&](int /*layer*/, int64_t n, int32_t /*position*/) {
    n_rows += n;
  };
  BenchOptions options = SmallOptions();
  options.prompts = {};
  for (const int64_t depth : {0, 70, 96}) {
    options.depths = {depth};
    options.batches = {1};
    n_rows = 0;
    RunBench(subject_, options, kNoProgress);
    const int64_t alone = n_rows;
    options.batches = {8};
    n_rows = 0;
    RunBench(subject_, options, kNoProgress);
    EXPECT_EQ(n_rows, 8 * alone) << depth;
  }
}

TEST_F(BenchRunner, JsonHasEveryField) {
  const std::vector<BenchRow> rows = RunBench(subject_, SmallOptions(), kNoProgress);
  const nlohmann::json parsed = nlohmann::json::parse(BenchToJson(rows).dump());
  ASSERT_TRUE(parsed.is_array());
  ASSERT_EQ(parsed.size(), rows.size());
  for (const nlohmann::json& row : parsed) {
    std::set<std::string> names;
    for (const auto& [name, value] : row.items()) names.insert(name);
    EXPECT_EQ(names, std::set<std::string>(std::begin(kFields), std::end(kFields)));
    EXPECT_EQ(row["device"], "cpu");
    EXPECT_TRUE(row["flash_attn"].is_null());
    EXPECT_TRUE(row["bytes_read"].is_number_integer());
    EXPECT_EQ(row["samples_ts"].size(), 3u);
  }
}

TEST_F(BenchRunner, RefusesWhatCannotBeMeasured) {
  BenchOptions options = SmallOptions();
  options.prompts = {0};
  options.generate = {0};
  EXPECT_THAT(ErrorOf(subject_, options), HasSubstr("nothing to measure"));
  options = SmallOptions();
  options.batches = {0};
  EXPECT_THAT(ErrorOf(subject_, options), HasSubstr("-b: 0 is below 1"));
  options = SmallOptions();
  options.prompts = {512};
  EXPECT_THAT(ErrorOf(subject_, options), HasSubstr("the context holds 512"));
  options = SmallOptions();
  // Neither is room made for these tokens nor a number too large for 64 bits.
  options.depths = {400};
  options.batches = {int64_t{1} << 30};
  EXPECT_THAT(ErrorOf(subject_, options), HasSubstr("TiB of KV memory"));
  options.batches = {8};
  options.engine.kv_bytes = 1 << 20;
  EXPECT_THAT(ErrorOf(subject_, options), HasSubstr("and there are 1.0 MiB: lower -b"));
  options = SmallOptions();
  options.arms = {"dens"};
  EXPECT_THAT(ErrorOf(subject_, options), HasSubstr("dense"));
}

class TinyModel : public ::testing::Test {
 protected:
  TinyModel() : path_(testing::TemporaryFolder() + "/tiny.gguf") {
    testing::WriteTinyGguf(path_, {});
  }

  static std::vector<int32_t> Tokens(int n) {
    Rng rng(7);
    std::vector<int32_t> tokens(n);
    for (int32_t& token : tokens) token = static_cast<int32_t>(3 + rng.Below(200));
    return tokens;
  }

  std::string path_;
  ThreadPool pool_{2};
};

using PeerLlamaTest = TinyModel;

TEST_F(PeerLlamaTest, GivesLogitsOfEveryPositionInOrder) {
  PeerModel model(path_, 2, &pool_);
  EXPECT_EQ(model.vocabulary(), testing::TinyVocabulary());
  PeerLlama peer(&model, {.context_tokens = 64});
  const std::vector<int32_t> tokens = Tokens(50);
  std::vector<std::vector<float>> rows;
  const auto keep = [&](int64_t position, std::span<const float> logits) {
    EXPECT_EQ(position, static_cast<int64_t>(rows.size()));
    rows.emplace_back(logits.begin(), logits.end());
  };
  // In two parts: a context goes on where it stopped.
  peer.PrefillWithLogits(0, std::span(tokens).first(20), keep);
  peer.PrefillWithLogits(0, std::span(tokens).subspan(20), keep);
  ASSERT_EQ(rows.size(), 50u);
  EXPECT_EQ(rows[0].size(), static_cast<size_t>(testing::TinyVocabulary()));

  peer.Clear();
  const int32_t next = peer.Prefill(0, tokens).next_token;
  const auto best = std::max_element(rows.back().begin(), rows.back().end());
  EXPECT_EQ(next, static_cast<int32_t>(best - rows.back().begin()));
}

TEST_F(PeerLlamaTest, DecodesSequencesAsIfAlone) {
  PeerModel model(path_, 2, &pool_);
  const std::vector<int32_t> tokens = Tokens(40);
  PeerLlama alone(&model, {.context_tokens = 64});
  const int32_t first = alone.Prefill(0, tokens).next_token;
  const std::vector<int32_t> expected = alone.Decode({&first, 1}, 8).tokens[0];
  for (const bool unified : {false, true}) {
    PeerLlama pair(&model, {.context_tokens = 64, .sequences = 2, .kv_unified = unified});
    const int32_t firsts[] = {pair.Prefill(0, tokens).next_token,
                              pair.Prefill(1, std::span(tokens).first(30)).next_token};
    EXPECT_EQ(pair.Decode(firsts, 8).tokens[0], expected);
    EXPECT_EQ(pair.n_tokens(1), 38);
    // Back to the prompt, and the same again.
    ASSERT_TRUE(pair.Rewind(0, 39));
    EXPECT_EQ(pair.Prefill(0, std::span(tokens).last(1)).next_token, first);
  }
  EXPECT_GT(alone.kv_bytes(), 0);
  EXPECT_GT(alone.total_bytes(), alone.kv_bytes());
}

TEST_F(PeerLlamaTest, RefusesBadInput) {
  EXPECT_THROW(PeerModel(path_ + ".absent", 2, nullptr), Error);
  EXPECT_THROW(PeerModel(path_, 0, nullptr), Error);
  PeerModel model(path_, 2, nullptr);
  EXPECT_THROW(PeerLlama(&model, {.context_tokens = 0}), Error);
  PeerLlama peer(&model, {.context_tokens = 16});
  EXPECT_THROW(peer.Prefill(0, Tokens(17)), Error);
  EXPECT_THROW(peer.Prefill(0, {}), Error);
  EXPECT_THROW(peer.Prefill(0, std::vector<int32_t>{testing::TinyVocabulary()}), Error);
  EXPECT_THROW(RequantizeGguf(path_, path_ + ".q", "Q99", 1), Error);
}

TEST_F(TinyModel, IsMeasuredBesideThePeer) {
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(path_);
  const std::unique_ptr<Backbone> backbone = LoadCpuBackbone(path_, &pool_);
  BenchOptions options = SmallOptions();
  options.model_path = path_;
  options.peer = PeerChoice::kBoth;
  options.depths = {40};
  const std::vector<BenchRow> rows =
      RunBench({.backbone = backbone.get(), .tokenizer = tokenizer.get(), .pool = &pool_}, options,
               kNoProgress);
  // Prefill and a single sequence: Winnow and two paths. The batch: each path with either KV
  // buffer.
  ASSERT_EQ(rows.size(), 3u + 3u + 5u);
  EXPECT_EQ(rows[0].engine, "winnow");
  EXPECT_FALSE(rows[0].peak_rss_bytes.has_value());
  EXPECT_EQ(rows[1].engine, "llama.cpp");
  EXPECT_EQ(rows[1].flash_attn, true);
  EXPECT_EQ(rows[2].flash_attn, false);
  EXPECT_EQ(rows[10].kv_unified, true);
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.samples_ts.size(), 3u);
    for (const double sample : row.samples_ts) EXPECT_GT(sample, 0);
  }
  EXPECT_TRUE(BenchToJson(rows)[1]["bytes_read"].is_null());
  EXPECT_THAT(BenchTable(rows), HasSubstr(" x\n"));

  options.engine.kv_dtype = DType::kQ8_0;
  options.peer = PeerChoice::kPlain;
  EXPECT_NE(
      ErrorOf({.backbone = backbone.get(), .tokenizer = tokenizer.get(), .pool = &pool_}, options),
      "");
}

TEST(BenchArms, RandomTokensHaveNoDocumentsToPrune) {
  const testing::FakeBackbone backbone({});
  BenchOptions options;
  options.prompts = {16};
  options.arms = {"dense", "prefill=entroprefill,uncalibrated=1"};
  testing::ExpectError([&] { CheckBench(options, backbone.config()); }, ErrorKind::kUsage,
                       "without documents");
}

TEST(BenchStatistics, FollowTheirDefinitions) {
  BenchRow row;
  row.samples_ts = {1, 2, 9};
  EXPECT_DOUBLE_EQ(row.average_ts(), 4);
  EXPECT_DOUBLE_EQ(row.median_ts(), 2);
  EXPECT_DOUBLE_EQ(row.stddev_ts(), std::sqrt((9.0 + 4.0 + 25.0) / 2));
  row.samples_ts = {1, 2, 4, 9};
  EXPECT_DOUBLE_EQ(row.median_ts(), 3);
  row.samples_ts = {};
  EXPECT_DOUBLE_EQ(row.median_ts(), 0);
  EXPECT_DOUBLE_EQ(MedianRatio({2, 9, 8}, {1, 3, 1}), 3);
}

TEST(BenchTable, ComparesWithTheFastestPeer) {
  BenchRow ours;
  ours.engine = "winnow";
  ours.arm = "auto";
  ours.n_gen = 8;
  ours.n_depth = 100;
  ours.samples_ts = {30, 30, 30};
  BenchRow slow = ours;
  slow.engine = "llama.cpp";
  slow.flash_attn = false;
  slow.samples_ts = {10, 10, 10};
  BenchRow fast = slow;
  fast.flash_attn = true;
  fast.samples_ts = {20, 20, 20};
  const std::string table = BenchTable({ours, slow, fast});
  EXPECT_THAT(table, HasSubstr("tg8 @ d100"));
  EXPECT_THAT(table, HasSubstr("1.500 x"));
  EXPECT_THAT(table, HasSubstr("fa off"));
}

}  // namespace
}  // namespace winnow
