// Writes seeded random feature maps as a safetensors or GGUF file, and files with one fault.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace winnow::testing {

struct RandomFeatureMaps {
  uint64_t seed = 1;
  int n_layers = 2;
  int query_heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int hidden = 24;
  int n_features = 8;
  std::string model_hash = "0123456789abcdef0123456789abcdef";
  std::string trained_tokens = "4096";
  std::string weight_type = "f32";  // or f16, bf16
  std::vector<int> omit_layers;

  // For broken files:
  std::string format = "1";
  std::string omit;        // name of a tensor or metadata key to leave out
  std::string misshape;    // name of a tensor that gets an element more on its last axis
  std::string not_finite;  // name of a tensor whose first value becomes NaN
  std::string extra;       // name of an additional tensor
};

// A path that ends in .gguf gets a GGUF file, any other safetensors. The values of a tensor depend
// on the seed and its name only. Throws std::runtime_error if the file cannot be written.
void WriteFeatureMaps(const std::string& path, const RandomFeatureMaps& options);

}  // namespace winnow::testing
