// A small seeded transformer in plain loops, for tests of everything around a backbone. Every row
// is computed alone, so results are the same bits for any batch or chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "model/backbone.h"

namespace winnow::testing {

struct FakeShape {
  int n_layers = 3;
  int hidden = 24;
  int query_heads = 4;
  int kv_heads = 2;
  int head_dim = 32;
  int vocabulary = 101;
  int64_t context_length = 512;
  std::vector<int64_t> windows;  // [L], 0: global; empty: all global
  int64_t max_tokens = 256;
};

class FakeBackbone : public Backbone {
 public:
  explicit FakeBackbone(const FakeShape& shape, uint64_t seed = 1);

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 0; }
  int64_t max_tokens() const override { return max_tokens_; }
  void Embed(std::span<const int32_t> tokens, TensorView<float, 2> hidden) override;
  Qkv AttentionInput(int layer, TensorView<const float, 2> hidden,
                     std::span<const int32_t> positions) override;
  void AttentionOutput(int layer, TensorView<const float, 3> attention,
                       TensorView<float, 2> hidden) override;
  void Logits(TensorView<const float, 2> hidden, TensorView<float, 2> logits) override;

  // Called at the start of AttentionInput with (layer, T, positions[0]); may throw to play a
  // failure.
  std::function<void(int, int64_t, int32_t)> on_attention_input;
  // Called with (layer, position), the key [K, D] and the value [K, D] of each token; may spoil
  // them.
  std::function<void(int, int32_t, std::span<float>, std::span<float>)> on_key_value;
  // Called with each row of logits before it is returned; may spoil it.
  std::function<void(std::span<float>)> on_logits;

 private:
  struct Layer {
    std::vector<float> qkv;     // [(H + 2K)·D, E]
    std::vector<float> output;  // [E, H·D]
    std::vector<float> mlp;     // [E, E]
  };
  ModelConfig config_;
  int64_t max_tokens_;
  std::vector<float> embedding_;  // [V, E]
  std::vector<Layer> layers_;
  std::vector<float> q_, k_, v_;
};

// Layers above `accepted_layer` (from 1; 0: none) see only the retained tokens, ascending.
struct FakePruning {
  int accepted_layer = 0;
  std::vector<int64_t> retained;
};

// Logits [T, V] of every position that the last layer sees, attention in double over all tokens
// that each may see.
std::vector<std::vector<float>> FakeLogits(FakeBackbone* backbone, std::span<const int32_t> tokens,
                                           const FakePruning& pruning = {});

}  // namespace winnow::testing
