// One layer's queries, keys and values over the rows of a prompt, and attention among them in
// double: plain and quadratic, for diagnoses of prompts of a few thousand tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/function_ref.h"
#include "core/parallel.h"
#include "core/tensor_view.h"
#include "model/backbone.h"

namespace winnow {

class LayerRows {
 public:
  // Runs AttentionInput over hidden [T, E] at ascending `positions` [T], in calls of what the
  // backbone takes, and keeps what it gives.
  void Project(Backbone* backbone, int layer, TensorView<const float, 2> hidden,
               std::span<const int32_t> positions);

  int64_t n_rows() const { return std::ssize(positions_); }
  // softmax of query head `head` at `row` over the rows up to itself that its window shows; weights
  // [T], 0 elsewhere. Returns the first row that it sees.
  int64_t Weights(int head, int64_t row, std::span<double> weights) const;
  // [D] of the KV head that `head` reads.
  std::span<const float> Value(int head, int64_t row) const;
  // The largest norm of a value that `head` reads.
  double LargestValue(int head) const;

  // Calls fn(head, row, first, weights) for every query head and row, on the pool's threads; a task
  // is a head and a block of rows, so that fn may write what belongs to a head and a row.
  void ForEach(
      ThreadPool* pool,
      FunctionRef<void(int head, int64_t row, int64_t first, std::span<const double>)> fn) const;
  // attention [T, H, D], of all rows.
  void Attend(ThreadPool* pool, TensorView<float, 3> attention) const;

 private:
  int query_heads_ = 0;
  int kv_heads_ = 0;
  int64_t head_dim_ = 0;
  int64_t window_ = 0;
  double scale_ = 0;
  std::vector<int32_t> positions_;
  std::vector<float> queries_;  // [T, H, D]
  std::vector<double> keys_;    // [K, D, T]: scores of a row run along memory
  std::vector<float> values_;   // [T, K, D]
};

// AttentionOutput over all rows, in calls of what the backbone takes.
void FinishLayer(Backbone* backbone, int layer, TensorView<const float, 3> attention,
                 TensorView<float, 2> hidden);

}  // namespace winnow
