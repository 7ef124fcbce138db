// The ggml graphs of the backbone's pieces, built for one layer and one number of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor_view.h"
#include "model/architecture.h"
#include "model/config.h"
#include "model/gemv.h"
#include "model/weights.h"

struct ggml_cgraph;
struct ggml_tensor;

namespace winnow {

// Activations of one piece. A piece's tensors are placed by hand, since no piece needs more than
// three at a time: the normed input or the result in `a`, the widest product in `b`, what becomes
// of it in `c`. The pieces share the memory, one runs at a time.
class Scratch {
 public:
  Scratch(const ModelConfig& config, int64_t max_tokens, int n_threads);
  float* a() { return a_.data(); }
  float* b() { return b_.data(); }
  float* c() { return c_.data(); }
  GemvScratch* gemv() { return &gemv_; }

 private:
  AlignedBuffer<float> a_;  // [T, E]
  AlignedBuffer<float> b_;  // [T, max((H + 2K)·D, 2F)]
  AlignedBuffer<float> c_;  // [T, max((H + 2K)·D, F)]
  GemvScratch gemv_;
};

// A graph whose tensors all have addresses but for those of the caller's memory: they are set
// before each run, and every one of `gemvs` is reset.
struct PieceGraph {
  ContextPtr context;
  std::vector<std::unique_ptr<Gemv>> gemvs;
  ggml_cgraph* graph = nullptr;
  std::vector<ggml_tensor*> hidden;  // [T, E] of the caller: input, and where a piece adds to it
  ggml_tensor* attention = nullptr;  // [T, H·D] of the caller
  ggml_tensor* positions = nullptr;  // [T] of the caller
  std::vector<ggml_tensor*> logits;  // [T, V] of the caller
  ggml_tensor* q = nullptr;          // [T, H, D] in the scratch
  ggml_tensor* k = nullptr;          // [T, K, D]
  ggml_tensor* v = nullptr;          // [T, K, D]
};

struct PieceInputs {
  const Architecture& architecture;
  const ModelConfig& config;
  const ModelWeights& weights;
  Scratch& scratch;
  int n_threads;
};

// `n_tokens` is at most what the scratch was made for.
PieceGraph BuildAttentionInput(const PieceInputs& inputs, int layer, int64_t n_tokens);
PieceGraph BuildAttentionOutput(const PieceInputs& inputs, int layer, int64_t n_tokens);
PieceGraph BuildLogits(const PieceInputs& inputs, int64_t n_tokens);

}  // namespace winnow
