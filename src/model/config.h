// The numbers that say what a model is: read from GGUF metadata by src/model/architecture.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace winnow {

enum class RopeKind : uint8_t {
  kInterleaved,  // pairs (2i, 2i+1): llama as GGUF stores it
  kHalves,       // pairs (i, i + D/2): qwen2, qwen3, gemma3 ("neox")
};

// Rotary embedding of one kind of layer.
struct RopeConfig {
  RopeKind kind = RopeKind::kInterleaved;
  int dims = 0;  // rotated dimensions of a head
  float base = 10000.0f;
  float scale = 1.0f;              // linear scaling: 1 / factor
  bool frequency_factors = false;  // the file has rope_freqs.weight (llama3 scaling)
};

struct LayerConfig {
  int64_t window = 0;  // sliding window in tokens (itself included); 0: global
  RopeConfig rope;
};

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "qwen3", "gemma3"
  std::string name;          // general.name, may be empty
  int n_layers = 0;          // L
  int hidden = 0;            // E
  int query_heads = 0;       // H
  int kv_heads = 0;          // K, divides H
  int head_dim = 0;          // D, of keys and of values
  int feed_forward = 0;
  int vocabulary = 0;
  int64_t context_length = 0;  // tokens the model was trained for
  float norm_epsilon = 0;
  float attention_scale = 0;  // multiplies q·k
  float embedding_scale = 1;
  float logit_softcap = 0;          // 0: none
  std::vector<LayerConfig> layers;  // [L]

  int group_size() const { return query_heads / kv_heads; }  // R
};

}  // namespace winnow
