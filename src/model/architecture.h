// What tells the supported transformer families apart, and how a file's metadata becomes a
// ModelConfig.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/gguf_file.h"

namespace winnow {

enum class Activation : uint8_t { kSilu, kGelu };

// One row of the table of families. Tensors that a file may have or lack in every family (biases,
// fused QKV, a separate output matrix) are found by looking for them.
struct Architecture {
  std::string_view name;
  RopeKind rope = RopeKind::kHalves;
  Activation activation = Activation::kSilu;
  bool qk_norm = false;           // RMS norm of each query and key head, before rotation
  bool post_norms = false;        // RMS norm of what attention and MLP give, before the residual
  bool scaled_embedding = false;  // embeddings are multiplied by sqrt(E)
  bool rope_factors = false;      // may have rope_freqs.weight (llama3 scaling)
  bool biases = false;            // may have biases of output, gate, up and down projections
  bool logit_softcap = false;     // may cap logits: cap * tanh(logit / cap)
  int local_period = 0;           // every local_period-th layer is global, the others are local
  int width_scaled_layers = 0;    // with so many layers, attention is scaled by (E / H)^-1/2
};

std::span<const Architecture> KnownArchitectures();

// The row for `general.architecture` of the file. Throws Error(kInput) that lists the known names.
const Architecture& FindArchitecture(const GgufFile& file);

// Reads the hyper-parameters and refuses, with Error(kInput), what this build cannot compute
// exactly: experts, YaRN and LongRoPE scaling, heads that differ between layers, non-causal
// attention.
ModelConfig ReadModelConfig(const GgufFile& file);

}  // namespace winnow
