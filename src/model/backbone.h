// The dense transformer, cut into the few large pieces that a library does well. Everything between
// AttentionInput and AttentionOutput is Winnow's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/parallel.h"
#include "core/tensor_view.h"
#include "model/config.h"

namespace winnow {

struct Qkv {
  TensorView<const float, 3> q;  // [T, H, D], normed and rotated, not scaled
  TensorView<const float, 3> k;  // [T, K, D], normed and rotated
  TensorView<const float, 3> v;  // [T, K, D]
};

// One model's weights on one device. Not thread-safe: one engine steps one backbone.
class Backbone {
 public:
  virtual ~Backbone() = default;

  virtual const ModelConfig& config() const = 0;
  // Bytes of weights that are resident.
  virtual int64_t weight_bytes() const = 0;
  // Largest T that a piece takes in one call.
  virtual int64_t max_tokens() const = 0;

  // hidden [T, E] = scaled embeddings of `tokens` [T]. Every token id must be in the vocabulary.
  virtual void Embed(std::span<const int32_t> tokens, TensorView<float, 2> hidden) = 0;

  // Norm, Q/K/V projections (+ biases, + q/k norm), RoPE at `positions` [T]. The views stay valid
  // until the next call of any piece.
  virtual Qkv AttentionInput(int layer, TensorView<const float, 2> hidden,
                             std::span<const int32_t> positions) = 0;

  // hidden [T, E] += output projection of attention [T, H, D], then += MLP (with the architecture's
  // norms).
  virtual void AttentionOutput(int layer, TensorView<const float, 3> attention,
                               TensorView<float, 2> hidden) = 0;

  // logits [T, V] = vocabulary projection of the normed hidden [T, E].
  virtual void Logits(TensorView<const float, 2> hidden, TensorView<float, 2> logits) = 0;
};

struct BackboneOptions {
  int64_t max_tokens = 512;  // largest T of a call
};

// Loads a GGUF file for the CPU. Throws Error(kInput) that names the file and the trouble: missing,
// truncated, not GGUF, unknown architecture (lists the known ones), missing or misshapen tensors,
// types that the CPU backend cannot compute; Error(kResource) if memory is short. `pool` outlives
// the backbone.
std::unique_ptr<Backbone> LoadCpuBackbone(const std::string& path, ThreadPool* pool,
                                          const BackboneOptions& options = {});

}  // namespace winnow
