// What prefill pruning is given: the prompt's candidate chunks, and the observers' attention at a
// layer. Engine and fixtures fill the same structures; pruners read them.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

// Fixed for a request before any layer is scored. T prompt tokens, k candidate chunks.
struct PruneProblem {
  int query_heads = 0;  // H
  int kv_heads = 0;     // K of the model, G in the paper; head h belongs to group h / (H / K)
  // [T]: the candidate chunk of each token, -1 for protected ones. A chunk's tokens are contiguous
  // and chunks come in order; every chunk has at least one token.
  std::vector<int32_t> chunk_of;
  std::vector<int64_t> chunk_tokens;  // [k], n_i
  int64_t n_sinks = 0;                // the first tokens, all protected, that entropy leaves out
  // Positions of the observers, strictly increasing, all after the last document token. The audit's
  // population is all of them; the proposal uses those from `first_proposal` on (W_p of them).
  std::vector<int64_t> observers;
  int64_t first_proposal = 0;

  int64_t n_candidate_tokens() const {  // N
    return std::accumulate(chunk_tokens.begin(), chunk_tokens.end(), int64_t{0});
  }
  int64_t n_tokens() const { return static_cast<int64_t>(chunk_of.size()); }
  int64_t n_chunks() const { return static_cast<int64_t>(chunk_tokens.size()); }
  int64_t n_observers() const { return static_cast<int64_t>(observers.size()); }
  int64_t n_proposal() const { return n_observers() - first_proposal; }
};

// One monitored layer, seen by the observers. U observers of the problem.
struct LayerObservation {
  // (2): each head's attention to each token, averaged over the proposal's observers.
  TensorView<const float, 2> mean_attention;  // [H, T]
  // Attention mass of each chunk in each observer's row; head h's observer u is row h * U + u.
  TensorView<const double, 2> chunk_mass;  // [H * U, k]
};

}  // namespace winnow
