#include "testing/fake_backbone.h"

#include <algorithm>
#include <cmath>

#include "core/rng.h"

namespace winnow::testing {
namespace {

std::vector<float> RandomMatrix(Rng* rng, int64_t rows, int64_t columns, double gain) {
  std::vector<float> m(rows * columns);
  const double scale = gain / std::sqrt(static_cast<double>(columns));
  for (float& x : m) x = static_cast<float>(scale * rng->Normal());
  return m;
}

// y [rows] = m [rows, columns] · x [columns]
void Multiply(const std::vector<float>& m, const float* x, int64_t columns, float* y) {
  const auto rows = static_cast<int64_t>(m.size()) / columns;
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (int64_t c = 0; c < columns; ++c) sum += m[r * columns + c] * x[c];
    y[r] = sum;
  }
}

void Normalise(const float* x, int64_t n, float* y) {
  float squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(n) + 1e-5f);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * inverse;
}

// A rotation by position in the first two dimensions of a head: enough to make positions matter.
void Rotate(float* head, int32_t position) {
  const float angle = 0.1f * static_cast<float>(position);
  const float x = head[0];
  const float y = head[1];
  head[0] = x * std::cos(angle) - y * std::sin(angle);
  head[1] = x * std::sin(angle) + y * std::cos(angle);
}

}  // namespace

FakeBackbone::FakeBackbone(const FakeShape& shape, uint64_t seed) : max_tokens_(shape.max_tokens) {
  config_.architecture = "fake";
  config_.n_layers = shape.n_layers;
  config_.hidden = shape.hidden;
  config_.query_heads = shape.query_heads;
  config_.kv_heads = shape.kv_heads;
  config_.head_dim = shape.head_dim;
  config_.vocabulary = shape.vocabulary;
  config_.context_length = shape.context_length;
  config_.attention_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  config_.layers.resize(shape.n_layers);
  for (size_t i = 0; i < shape.windows.size(); ++i) config_.layers[i].window = shape.windows[i];

  Rng rng(seed);
  embedding_ = RandomMatrix(&rng, shape.vocabulary, shape.hidden, 3.0);
  const int64_t heads = shape.query_heads + 2 * shape.kv_heads;
  for (int i = 0; i < shape.n_layers; ++i) {
    layers_.push_back(
        {.qkv = RandomMatrix(&rng, heads * shape.head_dim, shape.hidden, 1.5),
         .output = RandomMatrix(&rng, shape.hidden,
                                static_cast<int64_t>(shape.query_heads) * shape.head_dim, 2.0),
         .mlp = RandomMatrix(&rng, shape.hidden, shape.hidden, 1.0)});
  }
}

void FakeBackbone::Embed(std::span<const int32_t> tokens, TensorView<float, 2> hidden) {
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::copy_n(embedding_.data() + static_cast<int64_t>(tokens[t]) * config_.hidden,
                config_.hidden, hidden.row(static_cast<int64_t>(t)));
  }
}

Qkv FakeBackbone::AttentionInput(int layer, TensorView<const float, 2> hidden,
                                 std::span<const int32_t> positions) {
  const int64_t n = hidden.shape[0];
  if (on_attention_input) on_attention_input(layer, n, positions[0]);
  const int64_t d = config_.head_dim;
  const int64_t nq = config_.query_heads * d;
  const int64_t nk = config_.kv_heads * d;
  q_.resize(n * nq);
  k_.resize(n * nk);
  v_.resize(n * nk);
  std::vector<float> normed(config_.hidden);
  std::vector<float> qkv(nq + 2 * nk);
  for (int64_t t = 0; t < n; ++t) {
    Normalise(hidden.row(t), config_.hidden, normed.data());
    Multiply(layers_[layer].qkv, normed.data(), config_.hidden, qkv.data());
    for (int64_t h = 0; h < config_.query_heads + config_.kv_heads; ++h) {
      Rotate(qkv.data() + h * d, positions[t]);
    }
    if (on_key_value) {
      const std::span<float> kv(qkv.data() + nq, 2 * nk);
      on_key_value(layer, positions[t], kv.first(nk), kv.subspan(nk));
    }
    std::copy_n(qkv.data(), nq, q_.data() + t * nq);
    std::copy_n(qkv.data() + nq, nk, k_.data() + t * nk);
    std::copy_n(qkv.data() + nq + nk, nk, v_.data() + t * nk);
  }
  return {.q = {q_.data(), {n, config_.query_heads, d}},
          .k = {k_.data(), {n, config_.kv_heads, d}},
          .v = {v_.data(), {n, config_.kv_heads, d}}};
}

void FakeBackbone::AttentionOutput(int layer, TensorView<const float, 3> attention,
                                   TensorView<float, 2> hidden) {
  const int64_t width = attention.stride(0);
  std::vector<float> update(config_.hidden);
  for (int64_t t = 0; t < hidden.shape[0]; ++t) {
    float* row = hidden.row(t);
    Multiply(layers_[layer].output, attention.row(t), width, update.data());
    for (int i = 0; i < config_.hidden; ++i) row[i] += update[i];
    Multiply(layers_[layer].mlp, row, config_.hidden, update.data());
    for (int i = 0; i < config_.hidden; ++i) row[i] += std::tanh(update[i]);
  }
}

void FakeBackbone::Logits(TensorView<const float, 2> hidden, TensorView<float, 2> logits) {
  std::vector<float> normed(config_.hidden);
  for (int64_t t = 0; t < hidden.shape[0]; ++t) {
    Normalise(hidden.row(t), config_.hidden, normed.data());
    Multiply(embedding_, normed.data(), config_.hidden, logits.row(t));
    if (on_logits) on_logits({logits.row(t), static_cast<size_t>(config_.vocabulary)});
  }
}

namespace {

// Row `t` of attention over rows [first, t] of one layer, all heads.
void AttendRow(const ModelConfig& config, const Qkv& qkv, int64_t t, int64_t first, float* out) {
  const int64_t d = config.head_dim;
  for (int64_t h = 0; h < config.query_heads; ++h) {
    const float* q = qkv.q.row(t) + h * d;
    const int64_t kv_offset = h / config.group_size() * d;
    std::vector<double> weights;
    double largest = -1e300;
    for (int64_t s = first; s <= t; ++s) {
      double score = 0;
      for (int64_t i = 0; i < d; ++i) {
        score += static_cast<double>(q[i]) * qkv.k.row(s)[kv_offset + i];
      }
      weights.push_back(score * config.attention_scale);
      largest = std::max(largest, weights.back());
    }
    double total = 0;
    for (double& w : weights) total += (w = std::exp(w - largest));
    for (int64_t i = 0; i < d; ++i) {
      double sum = 0;
      for (int64_t s = first; s <= t; ++s) {
        sum += weights[s - first] * qkv.v.row(s)[kv_offset + i];
      }
      out[h * d + i] = static_cast<float>(sum / total);
    }
  }
}

}  // namespace

std::vector<std::vector<float>> FakeLogits(FakeBackbone* backbone, std::span<const int32_t> tokens,
                                           const FakePruning& pruning) {
  const ModelConfig& config = backbone->config();
  auto n = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> positions(n);
  for (int64_t t = 0; t < n; ++t) positions[t] = static_cast<int32_t>(t);
  std::vector<float> hidden(n * config.hidden);
  backbone->Embed(tokens, {hidden.data(), {n, config.hidden}});
  std::vector<float> attention(n * config.query_heads * config.head_dim);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const TensorView<float, 2> hidden_view(hidden.data(), {n, config.hidden});
    const TensorView<float, 3> attention_view(attention.data(),
                                              {n, config.query_heads, config.head_dim});
    const Qkv qkv = backbone->AttentionInput(layer, hidden_view, positions);
    const int64_t window = config.layers[layer].window;
    for (int64_t t = 0; t < n; ++t) {
      int64_t first = 0;
      while (window > 0 && positions[t] - positions[first] >= window) ++first;
      AttendRow(config, qkv, t, first, attention_view.row(t));
    }
    backbone->AttentionOutput(layer, attention_view, hidden_view);
    if (layer + 1 != pruning.accepted_layer) continue;
    n = std::ssize(pruning.retained);
    for (int64_t t = 0; t < n; ++t) {
      positions[t] = static_cast<int32_t>(pruning.retained[t]);
      std::copy_n(hidden_view.row(positions[t]), config.hidden, hidden_view.row(t));
    }
    positions.resize(n);
  }
  std::vector<std::vector<float>> logits(n, std::vector<float>(config.vocabulary));
  for (int64_t t = 0; t < n; ++t) {
    backbone->Logits({hidden.data() + t * config.hidden, {1, config.hidden}},
                     {logits[t].data(), {1, config.vocabulary}});
  }
  return logits;
}

}  // namespace winnow::testing
