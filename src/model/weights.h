// The weights of a model in the buffers that the CPU backend computes fastest from.
#pragma once

#include <ggml-backend.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "model/architecture.h"
#include "model/config.h"
#include "model/gguf_file.h"

struct ggml_tensor;

namespace winnow {

// y = W x + b, W [rows, columns] row-major; `bias` [rows] may be null.
struct Linear {
  ggml_tensor* weight = nullptr;
  ggml_tensor* bias = nullptr;
};

// Projections of one input whose matrices are stacked along rows where type and buffer allow, so
// that one product replaces several. Rows of a product do not depend on each other: results stay
// the same.
struct StackedLinear {
  struct Part {
    int matrix = 0;   // index into `matrices`
    int64_t row = 0;  // where this part's rows begin in it
    int64_t rows = 0;
  };
  std::vector<Linear> matrices;
  std::vector<Part> parts;  // q, k, v or gate, up

  bool OneMatrix() const { return matrices.size() == 1; }
};

struct LayerWeights {
  ggml_tensor* attention_norm = nullptr;  // [E]
  StackedLinear qkv;                      // E to H·D, K·D, K·D
  ggml_tensor* qk_norm = nullptr;  // [H + K, D], the norm's weight once for each head, or null
  Linear attention_output;         // H·D to E
  ggml_tensor* attention_post_norm = nullptr;  // [E], or null
  ggml_tensor* mlp_norm = nullptr;             // [E]
  StackedLinear gate_up;                       // E to F, F
  Linear down;                                 // F to E
  ggml_tensor* mlp_post_norm = nullptr;        // [E], or null
};

struct ContextDeleter {
  void operator()(ggml_context* p) const;
};
using ContextPtr = std::unique_ptr<ggml_context, ContextDeleter>;

struct ModelWeights {
  ggml_tensor* embedding = nullptr;     // [V, E]
  std::vector<LayerWeights> layers;     // [L]
  ggml_tensor* rope_factors = nullptr;  // [D / 2], or null
  ggml_tensor* output_norm = nullptr;   // [E]
  Linear output;                        // E to V; may share the embedding's tensor
  int64_t bytes = 0;                    // of all buffers

  struct BufferDeleter {
    void operator()(ggml_backend_buffer_t p) const;
  };
  std::vector<ContextPtr> contexts;
  std::vector<std::unique_ptr<ggml_backend_buffer, BufferDeleter>> buffers;
};

// Throws Error(kInput) on missing, misshapen or superfluous tensors, on layers that the metadata
// does not promise and on types that the CPU backend cannot compute. Reads no data.
void CheckTensors(const GgufFile& file, const ModelConfig& config);

// Loads every tensor of the file. Throws what CheckTensors throws, and Error(kResource) if the
// weights do not fit in memory.
ModelWeights LoadWeights(const GgufFile& file, const ModelConfig& config);

}  // namespace winnow
