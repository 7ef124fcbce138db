// Synthetic models: what the name says is what the file holds, and it runs.
#include "model/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/parallel.h"
#include "model/backbone.h"
#include "model/model_info.h"
#include "testing/expect_error.h"

namespace winnow {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::winnow::testing::ExpectError;

constexpr char kSmall[] = "synthetic:smollm2-135m,layers=1";

std::string Contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

TEST(SyntheticModel, HasTheShapeThatItsNameSays) {
  const ModelInfo info = ReadModelInfo(MakeSyntheticModel("synthetic:smollm2-135m,layers=2"));
  EXPECT_EQ(info.config.n_layers, 2);
  EXPECT_EQ(info.config.hidden, 576);
  EXPECT_EQ(info.config.query_heads, 9);
  EXPECT_EQ(info.config.kv_heads, 3);
  EXPECT_EQ(info.config.vocabulary, 49152);
  EXPECT_THAT(info.config.name, HasSubstr("synthetic:smollm2-135m,layers=2 (random weights)"));
  EXPECT_TRUE(info.types.contains("q4_0"));
  EXPECT_EQ(info.file_bytes, SyntheticModelBytes("synthetic:smollm2-135m,layers=2"));
  const ModelInfo wide = ReadModelInfo(MakeSyntheticModel(std::string(kSmall) + ",type=q8_0"));
  EXPECT_TRUE(wide.types.contains("q8_0"));
  EXPECT_GT(wide.file_bytes, SyntheticModelBytes(kSmall));
}

// The published size of the real files: 4.66 GB of Q4_0, whose output matrix is Q6_K there; and
// parameters, 8.03 and 1.24 billion.
TEST(SyntheticModel, LargeShapesHaveTheirParameters) {
  EXPECT_NEAR(static_cast<double>(SyntheticModelBytes("synthetic:llama-3.1-8b")), 8.03e9 * 18 / 32,
              0.01e9);
  EXPECT_NEAR(static_cast<double>(SyntheticModelBytes("synthetic:llama-3.2-1b")), 1.236e9 * 18 / 32,
              0.01e9);
  EXPECT_NEAR(static_cast<double>(SyntheticModelBytes("synthetic:qwen3-8b")), 8.19e9 * 18 / 32,
              0.01e9);
}

TEST(SyntheticModel, TheSameNameGivesTheSameBytes) {
  const std::string a = MakeSyntheticModel(kSmall);
  const std::string b = MakeSyntheticModel(kSmall);
  EXPECT_NE(a, b);
  EXPECT_EQ(Contents(a), Contents(b));
}

TEST(SyntheticModel, RunsWithFiniteLogits) {
  ThreadPool pool(1);
  const std::unique_ptr<Backbone> backbone = LoadCpuBackbone(MakeSyntheticModel(kSmall), &pool, {});
  const ModelConfig& config = backbone->config();
  std::vector<float> hidden(config.hidden);
  std::vector<float> logits(config.vocabulary);
  const int32_t token = 300;
  const TensorView<float, 2> row(hidden.data(), {1, config.hidden});
  backbone->Embed({&token, 1}, row);
  const int32_t position = 0;
  const Qkv qkv = backbone->AttentionInput(0, row, {&position, 1});
  std::vector<float> attention(config.query_heads * config.head_dim);
  for (size_t i = 0; i < attention.size(); ++i) {  // one token attends to itself
    const size_t head = i / config.head_dim / config.group_size();
    attention[i] = qkv.v.data[head * config.head_dim + i % config.head_dim];
  }
  backbone->AttentionOutput(0, {attention.data(), {1, config.query_heads, config.head_dim}}, row);
  backbone->Logits(row, {logits.data(), {1, config.vocabulary}});
  double squares = 0;
  for (float logit : logits) squares += static_cast<double>(logit) * logit;
  const double deviation = std::sqrt(squares / static_cast<double>(logits.size()));
  // Normed inputs times rows of norm about 1: logits of order 1.
  EXPECT_GT(deviation, 0.1);
  EXPECT_LT(deviation, 10);
}

TEST(SyntheticModel, WrongNamesAreExplained) {
  EXPECT_TRUE(IsSyntheticName("synthetic:anything"));
  EXPECT_FALSE(IsSyntheticName("model.gguf"));
  EXPECT_THAT(SyntheticShapes(), Contains("llama-3.1-8b"));
  const auto expect = [](const std::string& name, const std::string& message) {
    ExpectError([&] { SyntheticModelBytes(name); }, ErrorKind::kUsage, message);
  };
  expect("synthetic:gpt-9", "known: smollm2-135m");
  expect("synthetic:smollm2-135m,layers=0", "'layers=0' is neither");
  expect("synthetic:smollm2-135m,layers=2x", "'layers=2x' is neither");
  expect("synthetic:smollm2-135m,layers=", "is neither");
  expect("synthetic:smollm2-135m,type=f32", "'type=f32' is neither");
  const std::string huge = "synthetic:llama-3.1-8b,layers=1024";
  if (SyntheticModelBytes(huge) < static_cast<int64_t>(AvailableMemoryBytes() / 2)) return;
  ExpectError([&] { MakeSyntheticModel(huge); }, ErrorKind::kResource, "ask for fewer layers");
}

}  // namespace
}  // namespace winnow
