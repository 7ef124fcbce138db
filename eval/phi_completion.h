// Learned features as an estimate in a diagnosis: a state over the middle, less the tokens that
// were read, as `residual=phi` has it, but by token and not by page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "core/tensor_view.h"
#include "policy/residual/feature_file.h"
#include "policy/residual/feature_state.h"
#include "policy/residual/partial_attention.h"

namespace winnow {

// Features of one query head and of the keys it attends to; none where the maps abstain.
struct PhiView {
  std::span<const double> log_phi_query;    // [F]
  TensorView<const float, 2> log_phi_keys;  // [n, F] of the first n tokens, the middle among them
  bool abstains() const { return log_phi_query.empty(); }
};

class PhiCompletion {
 public:
  // `values` [T, D]; `middle` ascending, every token of which has features.
  PhiCompletion(const PhiView& view, TensorView<const double, 2> values,
                std::span<const int64_t> middle);

  // What stands for `unread`, ascending tokens of the middle: the middle's state less the others',
  // under the arm's guards. The whole middle is the paper's ablation without subtraction. Nothing
  // (NoAttention) where the maps abstain or a guard drops the estimate.
  PartialAttention Estimate(std::span<const int64_t> unread) const;

 private:
  FeatureState StateOf(std::span<const int64_t> rows) const;

  PhiView view_;
  TensorView<const double, 2> values_;
  std::span<const int64_t> middle_;
  FeatureState state_;
};

// log φ of a run's queries and of its prompt's keys, which are computed once: as many floats as
// tokens · F for each layer and KV head. Abstains as the arm does, in layers without maps and in
// contexts longer than they were trained on.
class PhiFeatures {
 public:
  // `maps` outlives it; null: it always abstains.
  PhiFeatures(const FeatureMaps* maps, int n_layers, int kv_heads);

  bool Abstains(int layer, int64_t n_tokens) const;
  // [prompt, F]; keys [prompt, D] of the KV head, not scaled. Not where it abstains.
  TensorView<const float, 2> PromptKeys(ThreadPool* pool, int layer, int kv_head,
                                        TensorView<const double, 2> keys);
  // [F]; query [D], not scaled. Not where it abstains.
  std::vector<double> Query(int layer, int query_head, std::span<const float> query) const;

 private:
  const FeatureMaps* maps_;
  int kv_heads_;
  std::vector<std::vector<float>> keys_;  // [L·K], empty before they are needed
};

}  // namespace winnow
