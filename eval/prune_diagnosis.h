// What removing chunks in mid-prefill does to one prompt, and what EntroPrefill's theory says it
// may do (20)-(27), (37)(38): two runs side by side, one over the whole prompt, one over what is
// retained above the pruning layer. Quadratic and in double: for prompts of a few thousand tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "model/backbone.h"
#include "policy/select/page_priority.h"
#include "text/prompt.h"

namespace winnow {

inline constexpr int64_t kMaxPruneDiagnosisTokens = 4096;

struct PruneDiagnosisOptions {
  int layer = 0;                // l*, counted from 1: the last that sees all; 0: a third of them
  std::vector<int64_t> remove;  // chunks, counted from 1 over all documents
  double keep = 0.25;  // without `remove`: the weakest go until so much of the documents is left
  int64_t observers = 64;  // that many of the last tokens after the documents, or all
  int64_t sinks = 4;       // first tokens; chunks among them stay
  HeadPooling pooling;
  int64_t page_tokens = 32;  // of (37)(38)

  // Throws Error(kUsage) for a value out of range.
  void Validate() const;
};

struct PrunedChunk {
  std::string document;
  int64_t begin = 0;  // tokens [begin, end) of the prompt
  int64_t end = 0;
  double mass = 0;        // μ of it (5)
  double page_gap = 0;    // (37) minus (38)
  bool candidate = true;  // false: holds a sink
  bool removed = false;
};

// One query head of a layer above l*, over all retained rows of the full trajectory.
struct PrunedHead {
  double eta = 0;            // η^ref (23)
  double density_ratio = 0;  // the smallest Γ with σ = 0 (26); +inf where μ is 0
  // The Γ of a grid, and its σ, for which (27) bounds η best.
  double gamma = 0;
  double sigma = 0;
  double transferred = 0;     // min(1, Γ·q + σ) >= η
  double value_observed = 0;  // largest ‖v_j‖ of this prompt
};

// Differences are of retained rows, the largest over rows.
struct PrunedLayer {
  int layer = 0;  // counted from 1
  int64_t window = 0;
  std::vector<PrunedHead> heads;
  // ‖(o − o_R)_h‖ over the heads together: what the deletion alone does to attention's output, and
  // its bound 2·√Σ(V_h·η_h)² with the values of this prompt (Lemma 4.2).
  double deletion = 0;
  double deletion_bound = 0;
  double defect = 0;      // ‖F_l(X)|_R − F_{l,R}(X|_R)‖: what e_l bounds
  double delta = 0;       // ‖X^l|_R − Y^l‖: what Δ_l bounds
  double state_norm = 0;  // ‖X^l|_R‖, to compare with
};

struct PruneDiagnosis {
  int layer = 0;  // l*
  int64_t n_tokens = 0;
  int64_t n_document_tokens = 0;
  int64_t n_removed = 0;
  int64_t n_observers = 0;
  double document_mass = 0;  // Z = μ(D)
  double removed_mass = 0;   // q = μ(E)
  // Σ A² of layer l*, a mean over query heads: of the observers' rows one by one (33), averaged,
  // and of their averaged row, which scoring uses (3). Averaging before squaring gives the smaller
  // one.
  double row_collision = 0;
  double mean_collision = 0;
  std::vector<PrunedChunk> chunks;
  std::vector<PrunedLayer> layers;  // l* + 1 .. L
  double logit_difference = 0;      // ‖z − z̃‖∞ of the last token
  double margin = 0;                // of the full run
  int32_t full_token = -1;
  int32_t pruned_token = -1;
};

struct PruneDiagnosisHooks {
  std::function<bool()> should_stop;                   // polled before each layer; may be empty
  std::function<void(int layer, int total)> on_layer;  // before each; may be empty
};

// Nothing if it was stopped. Throws Error(kInput) for a prompt without documents, without a token
// after them, without a candidate chunk, or longer than kMaxPruneDiagnosisTokens or the
// model's context; Error(kUsage) for
// chunks or a layer that are not there. `options` are valid.
std::optional<PruneDiagnosis> DiagnosePruning(Backbone* backbone, ThreadPool* pool,
                                              const Prompt& prompt,
                                              const PruneDiagnosisOptions& options,
                                              const PruneDiagnosisHooks& hooks);

}  // namespace winnow
