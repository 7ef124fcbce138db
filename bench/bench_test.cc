// The runner's rows, with a backbone in plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/bench_runner.h"
#include "bench/bench_side.h"
#include "core/error.h"
#include "testing/fake_backbone.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFields[] = {
    "engine",  "arm",        "device",      "n_threads",      "n_prompt",   "n_gen",
    "n_depth", "n_batch",    "avg_ts",      "median_ts",      "stddev_ts",  "samples_ts",
    "ttft_ms", "bytes_read", "bytes_dense", "peak_rss_bytes", "flash_attn", "kv_unified"};

void NoProgress(std::string_view /*what*/) {}

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
    RunBench(subject, options, NoProgress);
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
  const std::vector<BenchRow> rows = RunBench(subject_, options, NoProgress);
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

TEST_F(BenchRunner, DecodesAtTheDepthAskedFor) {
  BenchOptions options = SmallOptions();
  options.prompts = {};
  options.depths = {200};
  const std::vector<BenchRow> rows = RunBench(subject_, options, NoProgress);
  // 3 layers of 2 KV heads of 32 f16 keys and values: 768 bytes a cached token. The steps of a
  // single sequence are at 201 .. 204 tokens; in a batch the earlier ones also decode on the way
  // there.
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].bytes_read.value() % 384, 0);
  EXPECT_NEAR(static_cast<double>(rows[0].bytes_read.value()), 768 * 202.5, 768 * 3);
  EXPECT_NEAR(static_cast<double>(rows[1].bytes_read.value()), 768 * 200, 768 * 12);
  EXPECT_EQ(rows[1].bytes_read, rows[1].bytes_dense);
}

TEST_F(BenchRunner, JsonHasEveryField) {
  const std::vector<BenchRow> rows = RunBench(subject_, SmallOptions(), NoProgress);
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
  options.arms = {"dens"};
  EXPECT_THAT(ErrorOf(subject_, options), HasSubstr("dense"));
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
