#include "eval/prune_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/rng.h"
#include "eval/prune_calibration.h"

namespace winnow {
namespace {

constexpr int kHeads = 4;
constexpr int kChunks = 12;
constexpr int kTokens = 8;  // of a chunk
constexpr int kObservers = 6;
constexpr int kLayers = 3;

// Head 2 of layer 2 looks at the chunk that holds the answer, every other head at one of its own,
// and half of everybody's mass is on a sink.
ObservedPrompt DrawPrompt(Rng* rng) {
  ObservedPrompt prompt{.task = "needle"};
  PruneProblem& problem = prompt.problem;
  problem.query_heads = kHeads;
  problem.kv_heads = 2;
  problem.n_sinks = 1;
  problem.chunk_of = {-1};
  for (int32_t chunk = 0; chunk < kChunks; ++chunk) {
    problem.chunk_of.insert(problem.chunk_of.end(), kTokens, chunk);
    problem.chunk_tokens.push_back(kTokens);
  }
  problem.observers.reserve(kObservers);
  for (int u = 0; u < kObservers; ++u) {
    problem.observers.push_back(problem.n_tokens());
    problem.chunk_of.push_back(-1);
  }
  prompt.evidence = {static_cast<int32_t>(rng->Below(kChunks))};
  for (int number = 1; number <= kLayers; ++number) {
    ObservedPrompt::Layer layer{.number = number};
    for (int head = 0; head < kHeads; ++head) {
      std::vector<double> mean(kChunks, 0);
      const bool knows = number == 2 && head == 2;
      const auto other = static_cast<int32_t>(rng->Below(kChunks));
      for (int u = 0; u < kObservers; ++u) {
        std::vector<double> mass(kChunks);
        double sum = 0;
        for (double& m : mass) sum += m = 0.1 + rng->Uniform();
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          mass[chunk] *= 0.1 / sum;
          if (chunk == (knows ? prompt.evidence.front() : other)) mass[chunk] += 0.4;
          mean[chunk] += mass[chunk] / kObservers;
        }
        layer.chunk_mass.insert(layer.chunk_mass.end(), mass.begin(), mass.end());
      }
      layer.mean_attention.push_back(0.5f);
      for (const double m : mean) {
        layer.mean_attention.insert(layer.mean_attention.end(), kTokens,
                                    static_cast<float>(m / kTokens));
      }
      layer.mean_attention.insert(layer.mean_attention.end(), kObservers, 0.0f);
    }
    prompt.layers.push_back(std::move(layer));
  }
  return prompt;
}

std::vector<ObservedPrompt> DrawPrompts(int n, uint64_t seed) {
  Rng rng(seed);
  std::vector<ObservedPrompt> prompts;
  prompts.reserve(n);
  for (int i = 0; i < n; ++i) prompts.push_back(DrawPrompt(&rng));
  return prompts;
}

PruneCalibration CalibrateOn(const std::vector<ObservedPrompt>& prompts) {
  return CalibratePruning(prompts, kLayers + 1,
                          {.style = PruneStyle::kEarly, .first_layer = 1, .last_layer = kLayers});
}

TEST(PruneCalibration, FindsTheHeadThatKnows) {
  const PruneProfile profile = CalibrateOn(DrawPrompts(40, 1)).profile;
  ASSERT_EQ(profile.layers.size(), 1u);
  EXPECT_EQ(profile.layers[0].layer, 2);
  EXPECT_THAT(profile.layers[0].head_weights, ::testing::ElementsAre(0, 0, 1, 0));
}

TEST(PruneFigures, OfOtherPromptsKeepTheEvidenceAndRefuseBlindRemovals) {
  const PruneProfile profile = CalibrateOn(DrawPrompts(40, 1)).profile;
  const PruneFigures figures = TestPruning(DrawPrompts(40, 2), profile);
  EXPECT_EQ(figures.prompts, 40);
  EXPECT_EQ(figures.tasks.at("needle").evidence_kept, 40);
  EXPECT_EQ(figures.mean_layer, 2);
  EXPECT_EQ(figures.method().evidence_kept, 40);
  EXPECT_EQ(figures.method().equal_saving_kept, 40);
  // Calibration allows for about one prompt in twenty outside of its limits; here three times that.
  EXPECT_GE(figures.method().accepted, 34);
  EXPECT_GE(figures.method().mean_gap, 0);
  EXPECT_EQ(figures.verdicts.at("accepted"), figures.method().accepted);
  // A random removal keeps the evidence in a quarter of the cases, and is refused otherwise: 100 of
  // 400 on average, the deviation below 9.
  EXPECT_EQ(figures.random_removals, 400);
  EXPECT_LE(figures.random_within, 100 + 5 * 9);
  // All heads alike are diluted: more is lost at equal saving.
  EXPECT_LT(figures.method().equal_saving_kept_all_heads, figures.method().equal_saving_kept);
  EXPECT_LT(figures.proposers.at("random").equal_saving_kept, 30);
  EXPECT_EQ(figures.proposers.size(), 5u);
}

TEST(PruneFigures, AsJsonNameEveryProposer) {
  const PruneProfile profile = CalibrateOn(DrawPrompts(10, 1)).profile;
  const auto json = ToJson(TestPruning(DrawPrompts(5, 3), profile));
  EXPECT_EQ(json.at("prompts"), 5);
  for (const char* name : {"entroprefill", "mass", "uniform", "recency", "random"}) {
    EXPECT_TRUE(json.at("proposers").contains(name)) << name;
  }
}

}  // namespace
}  // namespace winnow
