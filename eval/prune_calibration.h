// Finds which layers and heads of a model look at what answers a question, and what removals cost
// each head: a profile for prefill pruning. Everything is chosen on calibration prompts, from one
// dense prefill of each, and then tested on others by the same Algorithm 1 that the engine runs.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/observed_prompt.h"
#include "eval/prune_figures.h"
#include "policy/prefill/prune_profile.h"

namespace winnow {

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

}  // namespace winnow
