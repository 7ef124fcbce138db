// The operator norms of a model's weights that EntroPrefill's stability theorem needs (6.2), as far
// as they can be had.
#pragma once

#include <functional>
#include <vector>

#include "core/parallel.h"
#include "model/config.h"
#include "model/gguf_file.h"
#include "policy/prefill/stability.h"

namespace winnow {

struct ModelNorms {
  // [L], upper bounds; those below the first one asked for are empty. `mlp` is NaN: all known
  // families gate their MLP, and the bound of its Jacobian that A.2 asks for is not implemented;
  // the product of the norms of two matrices would not be one. A norm after attention (gemma3) is
  // in `output`, norms of queries and keys (qwen3, gemma3) are in `query` and `key` and their
  // bounds.
  std::vector<BlockNorms> layers;
  std::vector<double> output_low;  // [L] lower bounds of `output`
  double readout = 0;              // Λ of (25)
  double failure = 0;  // probability that any norm is too small: power iterations' random start
};

// Of the layers from `first` (counted from 0) on, from weights as they are in the file. `on_layer`
// is called before each and may be empty; returns early if it says false. Throws Error(kInput) as
// ReadAttentionMatrices does.
ModelNorms ReadModelNorms(const GgufFile& file, const ModelConfig& config, int first,
                          ThreadPool* pool, const std::function<bool(int layer)>& on_layer);

}  // namespace winnow
