#include "model/layer_matrices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "model/architecture.h"
#include "model/backbone.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

std::string Write(const testing::TinyGguf& options) {
  static const std::string kFolder = testing::TemporaryFolder();
  std::string path = (std::filesystem::path(kFolder) / "model.gguf").string();
  testing::WriteTinyGguf(path, options);
  return path;
}

std::vector<double> Normalised(std::vector<double> x, const std::vector<float>& gamma,
                               double epsilon) {
  double squares = 0;
  for (double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * static_cast<double>(gamma[i]);
  return x;
}

// Row `i` of W x + b.
double Product(const FloatMatrix& w, const std::vector<float>& bias, const std::vector<double>& x,
               int64_t i) {
  double sum = bias.empty() ? 0 : static_cast<double>(bias[i]);
  for (int64_t j = 0; j < w.columns; ++j) {
    sum += static_cast<double>(w.View().row(i)[j]) * x[j];
  }
  return sum;
}

// At position 0 nothing is rotated: a value is the product with the normed state.
void ExpectTheBackbonesValues(const testing::TinyGguf& options, double tolerance) {
  const std::string path = Write(options);
  const GgufFile file(path);
  const ModelConfig config = ReadModelConfig(file);
  ThreadPool pool(1);
  const std::unique_ptr<Backbone> backbone = LoadCpuBackbone(path, &pool);
  std::vector<float> hidden(config.hidden);
  const std::vector<int32_t> token = {5};
  const std::vector<int32_t> position = {0};
  backbone->Embed(token, {hidden.data(), {1, config.hidden}});
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const Qkv qkv = backbone->AttentionInput(layer, {hidden.data(), {1, config.hidden}}, position);
    const AttentionMatrices m = ReadAttentionMatrices(file, config, layer);
    EXPECT_EQ(m.output.rows, config.hidden);
    EXPECT_EQ(m.output.columns, m.q.rows);
    EXPECT_EQ(m.mlp_norm.size(), m.norm.size());
    const std::vector<double> x =
        Normalised({hidden.begin(), hidden.end()}, m.norm, config.norm_epsilon);
    for (int64_t i = 0; i < m.v.rows; ++i) {
      EXPECT_NEAR(qkv.v.data[i], Product(m.v, m.v_bias, x, i), tolerance);
    }
    std::vector<double> query;
    for (int64_t i = 0; i < config.head_dim; ++i) query.push_back(Product(m.q, m.q_bias, x, i));
    if (!m.q_norm.empty()) query = Normalised(query, m.q_norm, config.norm_epsilon);
    for (int64_t i = 0; i < config.head_dim; ++i) EXPECT_NEAR(qkv.q.data[i], query[i], tolerance);
  }
}

TEST(AttentionMatrices, GiveWhatTheBackboneComputes) {
  // 64 products of numbers near one in f32; f16 weights take states rounded to f16, 2^-11 each.
  constexpr double kSingle = 5e-5;
  constexpr double kHalf = 64 * 0x1p-11 / 8;  // the roundings are independent: √64 of them
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    SCOPED_TRACE(architecture);
    ExpectTheBackbonesValues({.architecture = architecture}, kSingle);
  }
  ExpectTheBackbonesValues({.fused_qkv = true}, kSingle);
  ExpectTheBackbonesValues({.weight_type = "f16"}, kHalf);
}

TEST(AttentionMatrices, OnlyGemmaNormsWhatAttentionGives) {
  for (const char* architecture : {"llama", "gemma3"}) {
    const GgufFile file(Write({.architecture = architecture}));
    const AttentionMatrices m = ReadAttentionMatrices(file, ReadModelConfig(file), 0);
    EXPECT_EQ(m.post_norm.empty(), std::string(architecture) == "llama");
  }
}

TEST(ReadoutBounds, AreThoseOfTheOutputOrOfTheEmbedding) {
  for (const bool tied : {false, true}) {
    const std::string path = Write({.weight_type = "q8_0", .tied_output = tied});
    const GgufFile file(path);
    const ModelConfig config = ReadModelConfig(file);
    const ReadoutBounds bounds = ReadReadoutBounds(file, config);
    EXPECT_EQ(std::ssize(bounds.norm), config.hidden);
    EXPECT_GT(bounds.largest_row, 0);
    if (!tied) continue;
    // The embedding of a token is its row, unless the family scales it.
    ThreadPool pool(1);
    const std::unique_ptr<Backbone> backbone = LoadCpuBackbone(path, &pool);
    double largest = 0;
    for (int32_t token = 0; token < config.vocabulary; ++token) {
      std::vector<float> row(config.hidden);
      backbone->Embed({&token, 1}, {row.data(), {1, config.hidden}});
      double squares = 0;
      for (float x : row) squares += static_cast<double>(x) * static_cast<double>(x);
      largest = std::max(largest, std::sqrt(squares));
    }
    EXPECT_NEAR(bounds.largest_row, largest, 1e-12 * largest);
  }
}

TEST(AttentionMatrices, AMissingLayerIsAnInputError) {
  const GgufFile file(Write({}));
  EXPECT_THROW(ReadAttentionMatrices(file, ReadModelConfig(file), 99), Error);
}

}  // namespace
}  // namespace winnow
