// The queries of a few prompt tokens at one layer, kept from the prefill's quanta until the layer
// is over and all of its keys are stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/memory.h"
#include "core/tensor_view.h"

namespace winnow {

class ObserverQueries {
 public:
  // `tokens`: which, ascending.
  ObserverQueries(std::vector<int64_t> tokens, int query_heads, int head_dim)
      : tokens_(std::move(tokens)), query_heads_(query_heads), head_dim_(head_dim) {
    queries_.Resize(tokens_.size() * row_floats());
  }

  std::span<const int64_t> tokens() const { return tokens_; }
  // [U, H, D], normed and rotated, not scaled. CHECKs that the layer's quanta brought all of them.
  TensorView<const float, 3> queries() const {
    WINNOW_CHECK(n_taken_ == std::ssize(tokens_));
    return {queries_.data(), {std::ssize(tokens_), query_heads_, head_dim_}};
  }

  // Copies those of a quantum whose first token is `first_token`; `q` [T, H, D].
  void Take(int64_t first_token, TensorView<const float, 3> q) {
    const auto begin = std::lower_bound(tokens_.begin(), tokens_.end(), first_token);
    const auto end = std::lower_bound(begin, tokens_.end(), first_token + q.shape[0]);
    for (auto token = begin; token != end; ++token) {
      std::copy_n(q.row(*token - first_token), row_floats(),
                  queries_.data() + (token - tokens_.begin()) * row_floats());
    }
    n_taken_ += end - begin;
  }
  void NextLayer() { n_taken_ = 0; }

 private:
  int64_t row_floats() const { return static_cast<int64_t>(query_heads_) * head_dim_; }

  std::vector<int64_t> tokens_;
  int query_heads_;
  int head_dim_;
  int64_t n_taken_ = 0;
  AlignedBuffer<float> queries_;
};

}  // namespace winnow
