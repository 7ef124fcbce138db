// Runs a prompt densely and takes the figures of every global layer and query head at the decode
// steps that follow it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "engine/engine.h"
#include "eval/diagnosis.h"
#include "model/config.h"

namespace winnow {

// The arm whose planes an engine needs (EngineOptions::planes) for these options; "dense" if none.
std::string DiagnosisArm(const DiagnosisOptions& options);

struct DiagnosisRun {
  int64_t n_prompt = 0;
  int64_t n_positions = 0;        // decode steps
  int64_t budget = 0;             // K of the fixed share
  std::vector<TokenId> tokens;    // generated; their last has no figures
  std::vector<int> layers;        // global ones, counted from 0
  std::vector<int> local_layers;  // left out: they read their window, densely
  int query_heads = 0;
  std::vector<HeadFigures> figures;  // [positions, layers, H]

  const HeadFigures& At(int64_t position, size_t layer_index, int head) const;
  // Means over the positions: [layers, H].
  std::vector<HeadFigures> HeadMeans() const;
};

struct DiagnosisHooks {
  std::function<bool()> should_stop;                                 // polled; may be empty
  std::function<void(const PrefillProgress&)> on_prefill;            // may be empty
  std::function<void(int64_t position, int64_t total)> on_position;  // before each; may be empty
};

// Greedy decoding over `n_positions` steps, end tokens ignored; fewer if the context ends before.
// `engine`, of a backbone with `config`, has DiagnosisArm's planes and runs nothing else; `pool` is
// its own. Nothing if it was stopped. Throws Error as Engine::Submit does, Error(kInput) if the
// model has no global layer, and the run's error if it fails.
std::optional<DiagnosisRun> RunDiagnosis(Engine* engine, ThreadPool* pool,
                                         const ModelConfig& config,
                                         const std::vector<TokenId>& prompt, int64_t n_positions,
                                         const DiagnosisOptions& options,
                                         const DiagnosisHooks& hooks);

}  // namespace winnow
