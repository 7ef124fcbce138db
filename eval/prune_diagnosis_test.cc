#include "eval/prune_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "eval/prompt_attention.h"
#include "eval/prune_bounds.h"
#include "eval/prune_report.h"
#include "model/architecture.h"
#include "testing/expect_error.h"
#include "testing/fake_backbone.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using ::winnow::testing::FakeBackbone;
using ::winnow::testing::FakeShape;

// 6 protected tokens, two documents of three chunks of 20, 10 tokens of a question.
Prompt MakePrompt(int64_t vocabulary) {
  Prompt prompt;
  prompt.documents = {{.id = "a", .n_tokens = 60, .n_chunks = 3},
                      {.id = "b", .n_tokens = 60, .n_chunks = 3}};
  const auto add = [&](SpanKind kind, int64_t n, int document, int chunk) {
    const auto begin = std::ssize(prompt.tokens);
    for (int64_t i = 0; i < n; ++i) {
      prompt.tokens.push_back(static_cast<TokenId>((7 * (begin + i) + 3) % vocabulary));
    }
    prompt.spans.push_back(
        {.kind = kind, .begin = begin, .end = begin + n, .document = document, .chunk = chunk});
  };
  add(SpanKind::kProtected, 6, -1, -1);
  for (int document = 0; document < 2; ++document) {
    for (int chunk = 0; chunk < 3; ++chunk) add(SpanKind::kChunk, 20, document, chunk);
  }
  add(SpanKind::kQuery, 10, -1, -1);
  return prompt;
}

PruneDiagnosis Diagnose(FakeBackbone* backbone, const PruneDiagnosisOptions& options,
                        int threads = 2) {
  ThreadPool pool(threads);
  return DiagnosePruning(backbone, &pool, MakePrompt(backbone->config().vocabulary), options, {})
      .value();
}

TEST(DiagnosePruning, WithoutARemovalNothingMoves) {
  FakeBackbone backbone(FakeShape{});
  const PruneDiagnosis d = Diagnose(&backbone, {.layer = 1, .keep = 1});
  EXPECT_EQ(d.n_removed, 0);
  for (const PrunedLayer& layer : d.layers) {
    EXPECT_LE(layer.deletion, 1e-12);  // weights add up to one but for rounding
    EXPECT_EQ(layer.defect, 0);
    EXPECT_EQ(layer.delta, 0);
    for (const PrunedHead& head : layer.heads) EXPECT_EQ(head.eta, 0);
  }
  EXPECT_EQ(d.logit_difference, 0);
  // The plain forward is the model's: its margin is that of the logits of the whole prompt.
  const Prompt prompt = MakePrompt(backbone.config().vocabulary);
  const std::vector<float> last = FakeLogits(&backbone, prompt.tokens).back();
  // f32 states under another order of summation.
  EXPECT_NEAR(d.margin, DecisionMargin(std::vector<double>(last.begin(), last.end())), 1e-3);
}

TEST(DiagnosePruning, FiguresKeepTheirOrder) {
  FakeBackbone backbone(FakeShape{.n_layers = 5});
  const PruneDiagnosis d = Diagnose(&backbone, {.layer = 2, .remove = {2, 5, 6}});
  EXPECT_EQ(d.layer, 2);
  EXPECT_EQ(d.n_removed, 60);
  EXPECT_EQ(d.n_observers, 10);
  ASSERT_EQ(d.layers.size(), 3u);
  double mass = 0;
  for (const PrunedChunk& chunk : d.chunks) mass += chunk.mass;
  EXPECT_NEAR(mass, d.document_mass, 1e-12);
  EXPECT_LT(d.removed_mass, d.document_mass);
  EXPECT_LT(d.mean_collision, d.row_collision);  // Jensen, strictly: rows differ
  // The first layer above starts from the same states.
  EXPECT_NEAR(d.layers[0].defect, d.layers[0].delta, 1e-5 * d.layers[0].state_norm);
  for (const PrunedLayer& layer : d.layers) {
    EXPECT_GT(layer.deletion, 0);
    EXPECT_LE(layer.deletion, layer.deletion_bound);  // Lemma 4.2
    EXPECT_GT(layer.delta, 0);
    for (const PrunedHead& head : layer.heads) {
      EXPECT_GT(head.eta, 0);
      EXPECT_LE(head.eta, head.transferred + 1e-12);  // (27)
      EXPECT_GE(head.density_ratio, head.eta / d.removed_mass - 1e-12);
    }
  }
}

TEST(DiagnosePruning, TheWeakestChunksGo) {
  FakeBackbone backbone(FakeShape{.n_layers = 4});
  const PruneDiagnosis d = Diagnose(&backbone, {.layer = 1, .keep = 0.34});
  double kept = 1;
  double gone = 0;
  for (const PrunedChunk& chunk : d.chunks) {
    (chunk.removed ? gone : kept) =
        chunk.removed ? std::max(gone, chunk.mass) : std::min(kept, chunk.mass);
  }
  EXPECT_LE(gone, kept);
  EXPECT_EQ(d.n_removed, 80);  // floor(0.34 · 120) = 40 stay
}

TEST(DiagnosePruning, IsTheSameForAnyThreads) {
  FakeBackbone backbone(FakeShape{.n_layers = 4, .windows = {0, 16, 0, 16}});
  const PruneDiagnosis one = Diagnose(&backbone, {.layer = 1, .remove = {3}}, 1);
  const PruneDiagnosis three = Diagnose(&backbone, {.layer = 1, .remove = {3}}, 3);
  EXPECT_EQ(one.logit_difference, three.logit_difference);
  for (size_t l = 0; l < one.layers.size(); ++l) {
    EXPECT_EQ(one.layers[l].delta, three.layers[l].delta);
    EXPECT_EQ(one.layers[l].heads[0].transferred, three.layers[l].heads[0].transferred);
  }
  EXPECT_EQ(one.layers[0].window, 16);
}

TEST(LayerRows, AWindowHidesWhatIsOld) {
  FakeBackbone backbone(FakeShape{.n_layers = 1, .windows = {8}});
  std::vector<float> hidden(30 * backbone.config().hidden);
  std::vector<int32_t> tokens(30);
  std::iota(tokens.begin(), tokens.end(), 0);
  const TensorView<float, 2> states(hidden.data(), {30, backbone.config().hidden});
  backbone.Embed(tokens, states);
  // Positions with a hole of five after row 19, as after a removal.
  std::vector<int32_t> positions(30);
  for (int32_t t = 0; t < 30; ++t) positions[t] = t < 20 ? t : t + 5;
  LayerRows rows;
  rows.Project(&backbone, 0, states, positions);
  std::vector<double> weights(30);
  EXPECT_EQ(rows.Weights(0, 3, weights), 0);
  EXPECT_EQ(rows.Weights(0, 10, weights), 3);
  EXPECT_EQ(rows.Weights(0, 21, weights), 19);  // position 26 sees 19..26
  EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-12);
  EXPECT_EQ(weights[18], 0);
  EXPECT_EQ(weights[22], 0);
}

TEST(DiagnosePruning, RefusesWhatItCannotDiagnose) {
  FakeBackbone backbone(FakeShape{});
  ThreadPool pool(1);
  const Prompt prompt = MakePrompt(backbone.config().vocabulary);
  const auto run = [&](const Prompt& of, const PruneDiagnosisOptions& options) {
    return DiagnosePruning(&backbone, &pool, of, options, {});
  };
  testing::ExpectError([&] { run(prompt, {.layer = 3}); }, ErrorKind::kUsage, "one above");
  testing::ExpectError([&] { run(prompt, {.remove = {7}}); }, ErrorKind::kUsage, "no chunk 7");
  testing::ExpectError([&] { run(prompt, {.remove = {1}, .sinks = 7}); }, ErrorKind::kUsage,
                       "which stay");
  testing::ExpectError([&] { run(prompt, {.sinks = 200}); }, ErrorKind::kInput, "no chunk");
  Prompt unseen = prompt;
  unseen.spans.pop_back();
  unseen.tokens.resize(126);
  testing::ExpectError([&] { run(unseen, {}); }, ErrorKind::kInput, "nothing observes");
  Prompt longer = prompt;
  longer.tokens.resize(kMaxPruneDiagnosisTokens + 1);
  testing::ExpectError([&] { run(longer, {}); }, ErrorKind::kInput, "at most 4096");
  longer.tokens.resize(backbone.config().context_length + 1);
  testing::ExpectError([&] { run(longer, {}); }, ErrorKind::kInput, "context");
  testing::ExpectError([] { PruneDiagnosisOptions{.keep = 1.5}.Validate(); }, ErrorKind::kUsage,
                       "keep");
  EXPECT_FALSE(DiagnosePruning(&backbone, &pool, prompt, {}, {.should_stop = [] { return true; }}));
}

class PruneBoundsOf : public ::testing::TestWithParam<const char*> {};

// The attention half of the theorem's bounds, on real (if tiny) models of every family.
TEST_P(PruneBoundsOf, EncloseWhatWasMeasured) {
  const std::string path =
      (std::filesystem::path(testing::TemporaryFolder()) / "model.gguf").string();
  testing::WriteTinyGguf(path, {.architecture = GetParam(), .n_layers = 6});
  const GgufFile file(path);
  ThreadPool pool(2);
  const std::unique_ptr<Backbone> backbone = LoadCpuBackbone(path, &pool);
  const Prompt prompt = MakePrompt(backbone->config().vocabulary);
  const PruneDiagnosis d =
      DiagnosePruning(backbone.get(), &pool, prompt, {.remove = {1, 2, 4}}, {}).value();
  EXPECT_EQ(d.layer, 2);
  const ModelNorms norms = ReadModelNorms(file, backbone->config(), d.layer, &pool, {});
  const PruneBounds bounds = BoundPruning(d, norms);
  for (size_t l = 0; l < d.layers.size(); ++l) {
    const BlockNorms& block = norms.layers[d.layers[l].layer - 1];
    EXPECT_TRUE(std::isnan(block.mlp));
    EXPECT_LE(norms.output_low[d.layers[l].layer - 1], block.output);
    for (size_t h = 0; h < block.heads.size(); ++h) {
      EXPECT_LE(d.layers[l].heads[h].value_observed, block.heads[h].value_bound);
    }
    EXPECT_LE(d.layers[l].deletion, d.layers[l].deletion_bound);
    EXPECT_LE(d.layers[l].deletion_bound, bounds.layers[l].deletion * (1 + 1e-12));
    EXPECT_LE(bounds.layers[l].attention_factor_sharp, bounds.layers[l].constants.attention);
  }
  EXPECT_TRUE(bounds.vacuous);
  const std::string page = PruneTable(d, bounds, norms);
  EXPECT_THAT(page, HasSubstr("chunks 1-2,4"));
  EXPECT_THAT(page, HasSubstr("The bound is vacuous"));
  const nlohmann::ordered_json json = ToJson(d, bounds, norms, {});
  EXPECT_TRUE(json.at("layers").at(0).at("mlp_lipschitz").is_null());
  EXPECT_EQ(json.at("certified"), false);
  EXPECT_EQ(json.at("chunks").size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Families, PruneBoundsOf,
                         ::testing::Values("llama", "qwen2", "qwen3", "gemma3"));

}  // namespace
}  // namespace winnow
