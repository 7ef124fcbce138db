// Finds which layers and heads of a model look at what answers a question, and what removals cost
// each head: a profile for prefill pruning. Everything is chosen on calibration prompts, from one
// dense prefill of each, and then tested on others by the same Algorithm 1 that the engine runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "eval/task.h"
#include "policy/prefill/prune_profile.h"

namespace winnow {

// What the observers of one prompt look at.
struct ObservedPrompt {
  struct Layer {
    int number = 0;                     // from 1
    std::vector<float> mean_attention;  // [H, T]
    std::vector<double> chunk_mass;     // [H · U, k]
  };
  std::string task;
  PruneProblem problem;
  std::vector<int32_t> evidence;  // candidate chunks that hold the answer
  std::vector<Layer> layers;

  LayerObservation Observation(const Layer& layer) const;
};

struct ObserveHooks {
  std::function<bool()> should_stop;          // polled between steps; may be empty
  std::function<void(int64_t done)> on_done;  // prompts so far; may be empty
};

// One dense prefill of each sample, to the end of `last_layer`. Samples must name evidence, and
// leave out none of it from the candidates. Nothing if it was stopped. Throws as Engine::Submit,
// and Error(kInput) for a prompt that fails or has no evidence to look for.
std::optional<std::vector<ObservedPrompt>> ObservePrompts(Engine* engine,
                                                          const std::vector<EvalSample>& samples,
                                                          int last_layer,
                                                          const ObserveHooks& hooks);

enum class PruneStyle : uint8_t {
  kEarly,  // one layer, few heads: saves most of the prefill
  kLate,   // a few layers, the safest
};

struct PruneCalibrationOptions {
  PruneStyle style = PruneStyle::kLate;
  double keep = 0.25;
  // Layers that may be monitored, from 1. An early one saves more.
  int first_layer = 1;
  int last_layer = 1;
};

// What a profile does to prompts.
struct PruneFigures {
  struct Task {
    int64_t prompts = 0;
    int64_t evidence_kept = 0;
  };
  int64_t prompts = 0;
  int64_t accepted = 0;
  int64_t evidence_kept = 0;  // all of it, whether or not the request was accepted
  int64_t accepted_evidence_kept = 0;
  int64_t random_accepted = 0;  // random removals of as many tokens under the same limits
  double mean_layer = 0;        // of acceptance
  std::map<std::string, Task> tasks;
};

// How well one layer does without limits: share of prompts whose evidence is all kept.
struct LayerRecall {
  int layer = 0;
  double pooled = 0;                 // all heads alike, as in the paper
  std::vector<double> head_weights;  // those that find most
  double best = 0;                   // and what they find
  double best_needed = 1;            // mean share that has to be kept for it
};

struct PruneCalibration {
  PruneProfile profile;  // without its model's hash
  PruneFigures calibration;
  std::vector<LayerRecall> layers;
};

// At least one prompt, all with the same heads. Throws Error(kInput) if no layer can be monitored.
PruneCalibration CalibratePruning(const std::vector<ObservedPrompt>& prompts, int n_layers,
                                  const PruneCalibrationOptions& options);

// Runs Algorithm 1 with the profile on what was observed.
PruneFigures TestPruning(const std::vector<ObservedPrompt>& prompts, const PruneProfile& profile);

nlohmann::ordered_json ToJson(const PruneFigures& figures);

}  // namespace winnow
