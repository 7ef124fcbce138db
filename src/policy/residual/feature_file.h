// Trained feature maps of a model, from a safetensors or GGUF file, refused if they belong to
// another model.
//
// Metadata, all text: `winnow.phi.format` = "1", `winnow.phi.model_hash` (of the model file),
// `winnow.phi.trained_tokens` (the longest context they were trained on). Tensors of layer l (from
// 0), for M maps: phi_q of the H query heads, phi_k of the K KV heads:
//   blk.l.phi_q.w_s [M, hidden, D]       .b_s [M, hidden]   .alpha [M]
//              .w_1 [M, hidden, hidden]  .b_1 [M, hidden]   .log_gain [M]
//              .w_2 [M, hidden, hidden]  .b_2 [M, hidden]
//              .w_o [M, features, hidden] .b_o [M, features]
// A layer may be left out as a whole; hidden and features are the same everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "policy/residual/feature_map.h"

namespace winnow {

// What the maps have to fit.
struct FeatureModel {
  int64_t n_layers = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  std::string hash;  // of the model file, as in profiles
};

// Owns the weights of every layer, in float32.
class FeatureMaps {
 public:
  const FeatureMapShape& shape() const { return shape_; }
  // The paper's maps fail beyond the length they were trained on (its Table 7).
  int64_t trained_tokens() const { return trained_tokens_; }
  bool HasLayer(int64_t layer) const;
  // The map of a head; views into this object. The layer must be there.
  FeatureMap<float> Query(int64_t layer, int64_t query_head) const;
  FeatureMap<float> Key(int64_t layer, int64_t kv_head) const;
  int64_t weight_bytes() const;

 private:
  friend class FeatureMapLoader;
  // Stacked over heads, as in the file.
  struct Stack {
    std::vector<float> w_s, b_s, w_1, b_1, w_2, b_2, w_o, b_o, alpha, log_gain;
  };
  struct Layer {
    Stack query, key;
  };
  FeatureMap<float> At(const Stack& stack, int64_t head) const;

  FeatureMapShape shape_;
  int64_t trained_tokens_ = 0;
  std::vector<Layer> layers_;  // [L]; empty vectors where the file has no maps
};

// Throws Error(kInput) that names the file and what is wrong: not readable, another format version,
// another model's hash, another number of layers or heads or another head dimension, a missing,
// unknown or misshapen tensor, a value that is not finite.
FeatureMaps LoadFeatureMaps(const std::string& path, const FeatureModel& model);

// The same for the model of `config` in the file `model_path`. Throws also what HashModelFile does.
FeatureMaps LoadFeatureMaps(const std::string& path, const ModelConfig& config,
                            const std::string& model_path);

}  // namespace winnow
