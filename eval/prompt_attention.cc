#include "eval/prompt_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {
namespace {

constexpr int64_t kBlockRows = 32;

}  // namespace

void LayerRows::Project(Backbone* backbone, int layer, TensorView<const float, 2> hidden,
                        std::span<const int32_t> positions) {
  const ModelConfig& config = backbone->config();
  query_heads_ = config.query_heads;
  kv_heads_ = config.kv_heads;
  head_dim_ = config.head_dim;
  window_ = config.layers[layer].window;
  scale_ = static_cast<double>(config.attention_scale);
  positions_.assign(positions.begin(), positions.end());
  const int64_t n = n_rows();
  WINNOW_CHECK(hidden.shape[0] == n);
  queries_.resize(n * query_heads_ * head_dim_);
  values_.resize(n * kv_heads_ * head_dim_);
  keys_.resize(n * kv_heads_ * head_dim_);
  for (int64_t begin = 0; begin < n; begin += backbone->max_tokens()) {
    const int64_t end = std::min(n, begin + backbone->max_tokens());
    const Qkv qkv = backbone->AttentionInput(layer, hidden.Slice(begin, end),
                                             positions.subspan(begin, end - begin));
    std::copy_n(qkv.q.data, qkv.q.size(), queries_.begin() + begin * query_heads_ * head_dim_);
    std::copy_n(qkv.v.data, qkv.v.size(), values_.begin() + begin * kv_heads_ * head_dim_);
    for (int64_t row = begin; row < end; ++row) {
      const float* key = qkv.k.row(row - begin);
      for (int64_t c = 0; c < kv_heads_ * head_dim_; ++c) {
        keys_[c * n + row] = static_cast<double>(key[c]);
      }
    }
  }
}

int64_t LayerRows::Weights(int head, int64_t row, std::span<double> weights) const {
  const int64_t n = n_rows();
  WINNOW_CHECK(std::ssize(weights) == n);
  int64_t first = 0;
  if (window_ > 0) {
    first = std::upper_bound(positions_.begin(), positions_.begin() + row + 1,
                             positions_[row] - window_) -
            positions_.begin();
  }
  std::fill(weights.begin(), weights.end(), 0.0);
  const float* query = queries_.data() + (row * query_heads_ + head) * head_dim_;
  const int64_t kv_head = head / (query_heads_ / kv_heads_);
  for (int64_t c = 0; c < head_dim_; ++c) {
    const double q = scale_ * static_cast<double>(query[c]);
    const double* key = keys_.data() + (kv_head * head_dim_ + c) * n;
    for (int64_t j = first; j <= row; ++j) weights[j] += q * key[j];
  }
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j <= row; ++j) max = std::max(max, weights[j]);
  double sum = 0;
  for (int64_t j = first; j <= row; ++j) {
    weights[j] = std::exp(weights[j] - max);
    sum += weights[j];
  }
  for (int64_t j = first; j <= row; ++j) weights[j] /= sum;
  return first;
}

std::span<const float> LayerRows::Value(int head, int64_t row) const {
  const int64_t kv_head = head / (query_heads_ / kv_heads_);
  return {values_.data() + (row * kv_heads_ + kv_head) * head_dim_, static_cast<size_t>(head_dim_)};
}

double LayerRows::LargestValue(int head) const {
  double largest = 0;
  for (int64_t row = 0; row < n_rows(); ++row) {
    double squares = 0;
    for (float x : Value(head, row)) squares += static_cast<double>(x) * static_cast<double>(x);
    largest = std::max(largest, std::sqrt(squares));
  }
  return largest;
}

void LayerRows::ForEach(
    ThreadPool* pool,
    FunctionRef<void(int head, int64_t row, int64_t first, std::span<const double>)> fn) const {
  const int64_t n = n_rows();
  const int64_t n_blocks = (n + kBlockRows - 1) / kBlockRows;
  std::vector<double> weights(pool->size() * n);
  // The last rows see most: they come first, so that no thread is left with them alone.
  pool->ForEach(n_blocks * query_heads_, [&](int64_t task, int thread) {
    const std::span<double> own = std::span(weights).subspan(thread * n, n);
    const auto head = static_cast<int>(task % query_heads_);
    const int64_t begin = (n_blocks - 1 - task / query_heads_) * kBlockRows;
    for (int64_t row = begin; row < std::min(n, begin + kBlockRows); ++row) {
      const int64_t first = Weights(head, row, own);
      fn(head, row, first, own);
    }
  });
}

void LayerRows::Attend(ThreadPool* pool, TensorView<float, 3> attention) const {
  WINNOW_CHECK(attention.shape[0] == n_rows());
  std::vector<double> sums(query_heads_ * n_rows() * head_dim_, 0.0);
  ForEach(pool, [&](int head, int64_t row, int64_t first, std::span<const double> weights) {
    double* sum = sums.data() + (row * query_heads_ + head) * head_dim_;
    for (int64_t j = first; j <= row; ++j) {
      const std::span<const float> value = Value(head, j);
      for (int64_t c = 0; c < head_dim_; ++c) {
        sum[c] += weights[j] * static_cast<double>(value[c]);
      }
    }
  });
  std::copy(sums.begin(), sums.end(), attention.data);
}

void FinishLayer(Backbone* backbone, int layer, TensorView<const float, 3> attention,
                 TensorView<float, 2> hidden) {
  for (int64_t begin = 0; begin < hidden.shape[0]; begin += backbone->max_tokens()) {
    const int64_t end = std::min(hidden.shape[0], begin + backbone->max_tokens());
    backbone->AttentionOutput(layer, attention.Slice(begin, end), hidden.Slice(begin, end));
  }
}

}  // namespace winnow
