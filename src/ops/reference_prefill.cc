#include "ops/reference_prefill.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "ops/reference.h"

namespace winnow::reference {
namespace {

using Vector = std::vector<double>;

// z = P x of (34).
Vector Centred(Normaliser kind, std::span<const double> x) {
  Vector z(x.begin(), x.end());
  if (kind == Normaliser::kRms) return z;
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  for (double& value : z) value -= mean;
  return z;
}

double Regularised(std::span<const double> z, double epsilon) {
  double squares = 0;
  for (double value : z) squares += value * value;
  return squares / static_cast<double>(z.size()) + epsilon;
}

// y = W x + b, W [rows, x.size()]; b [rows] or empty.
Vector Product(std::span<const double> w, std::span<const double> x, std::span<const double> b) {
  const size_t rows = w.size() / x.size();
  Vector y(rows, 0.0);
  for (size_t i = 0; i < rows; ++i) {
    if (!b.empty()) y[i] = b[i];
    for (size_t k = 0; k < x.size(); ++k) y[i] += w[i * x.size() + k] * x[k];
  }
  return y;
}

// Every head of `heads` [n, D], D even.
void Rotate(std::span<double> heads, int64_t dim, int64_t position, double base) {
  const int64_t half = dim / 2;
  for (size_t head = 0; head < heads.size(); head += dim) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      double& low = heads[head + i];
      double& high = heads[head + i + half];
      const double rotated = low * std::cos(angle) - high * std::sin(angle);
      high = low * std::sin(angle) + high * std::cos(angle);
      low = rotated;
    }
  }
}

// Rows of queries, keys and values of one block; keys and values by head, [G][T, D].
struct Projected {
  Vector queries;  // [T, H·D]
  std::vector<Vector> keys, values;
};

Projected Project(const TinyModel& model, const TinyBlock& block, std::span<const double> x,
                  std::span<const int64_t> positions) {
  Projected out;
  out.keys.resize(model.kv_heads);
  out.values.resize(model.kv_heads);
  for (size_t t = 0; t < positions.size(); ++t) {
    const Vector normed = Normalise(model.norm, x.subspan(t * model.hidden, model.hidden),
                                    block.gamma1, block.beta1, model.epsilon);
    Vector q = Product(block.wq, normed, block.bq);
    Vector k = Product(block.wk, normed, block.bk);
    const Vector v = Product(block.wv, normed, block.bv);
    Rotate(q, model.head_dim, positions[t], model.rope_base);
    Rotate(k, model.head_dim, positions[t], model.rope_base);
    out.queries.insert(out.queries.end(), q.begin(), q.end());
    for (int64_t g = 0; g < model.kv_heads; ++g) {
      const int64_t begin = g * model.head_dim;
      const int64_t end = begin + model.head_dim;
      out.keys[g].insert(out.keys[g].end(), k.begin() + begin, k.begin() + end);
      out.values[g].insert(out.values[g].end(), v.begin() + begin, v.begin() + end);
    }
  }
  return out;
}

// Attention of head `h` at row `t`; weights [T] beyond t stay 0.
void AttendRow(const TinyModel& model, const Projected& rows, int64_t t, int64_t h,
               std::span<double> weights, std::span<double> out) {
  const int64_t dim = model.head_dim;
  const int64_t group = h / (model.query_heads / model.kv_heads);
  const std::span<const double> q(rows.queries.data() + (t * model.query_heads + h) * dim, dim);
  const TensorView<const double, 2> keys(rows.keys[group].data(), {t + 1, dim});
  const TensorView<const double, 2> values(rows.values[group].data(), {t + 1, dim});
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const double log_mass = Attention(q, keys, values, scale, out);
  for (int64_t j = 0; j <= t; ++j) {
    double score = 0;
    for (int64_t i = 0; i < dim; ++i) score += scale * q[i] * keys.row(j)[i];
    weights[j] = std::exp(score - log_mass);
  }
}

void AddTo(std::span<double> x, std::span<const double> y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

void AddMlp(const TinyModel& model, const TinyBlock& block, std::span<double> row) {
  const Vector normed = Normalise(model.norm, row, block.gamma2, block.beta2, model.epsilon);
  Vector inner = Product(block.w1, normed, block.b1);
  for (double& value : inner) {
    value = model.activation == TinyActivation::kRelu ? std::max(value, 0.0) : std::tanh(value);
  }
  AddTo(row, Product(block.w2, inner, block.b2));
}

}  // namespace

Vector Normalise(Normaliser kind, std::span<const double> x, std::span<const double> gamma,
                 std::span<const double> beta, double epsilon) {
  WINNOW_CHECK(x.size() == gamma.size() && (beta.empty() || beta.size() == x.size()));
  Vector z = Centred(kind, x);
  const double deviation = std::sqrt(Regularised(z, epsilon));
  for (size_t i = 0; i < z.size(); ++i) {
    z[i] = gamma[i] * z[i] / deviation;
    if (kind == Normaliser::kLayer && !beta.empty()) z[i] += beta[i];
  }
  return z;
}

Vector NormaliserJacobian(Normaliser kind, std::span<const double> x, std::span<const double> gamma,
                          double epsilon) {
  const size_t dim = x.size();
  const Vector z = Centred(kind, x);
  const double v = Regularised(z, epsilon);
  const auto n = static_cast<double>(dim);
  Vector jacobian(dim * dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      const double projector = (i == j ? 1.0 : 0.0) - (kind == Normaliser::kLayer ? 1 / n : 0.0);
      jacobian[i * dim + j] =
          gamma[i] * (projector / std::sqrt(v) - z[i] * z[j] / (n * v * std::sqrt(v)));
    }
  }
  return jacobian;
}

TinyRun RunTiny(const TinyModel& model, size_t first, std::span<const double> x,
                std::span<const int64_t> positions) {
  const int64_t n_tokens = std::ssize(positions);
  const int64_t width = model.query_heads * model.head_dim;
  WINNOW_CHECK(std::ssize(x) == n_tokens * model.hidden && model.head_dim % 2 == 0);
  TinyRun run;
  run.states.emplace_back(x.begin(), x.end());
  for (size_t l = first; l < model.blocks.size(); ++l) {
    const TinyBlock& block = model.blocks[l];
    Vector state = run.states.back();
    const Projected rows = Project(model, block, state, positions);
    Vector attention(model.query_heads * n_tokens * n_tokens, 0.0);
    for (int64_t t = 0; t < n_tokens; ++t) {
      Vector heads(width);
      for (int64_t h = 0; h < model.query_heads; ++h) {
        AttendRow(model, rows, t, h,
                  std::span(attention).subspan((h * n_tokens + t) * n_tokens, n_tokens),
                  std::span(heads).subspan(h * model.head_dim, model.head_dim));
      }
      const std::span<double> row = std::span(state).subspan(t * model.hidden, model.hidden);
      AddTo(row, Product(block.output, heads, {}));
      AddMlp(model, block, row);
    }
    run.states.push_back(std::move(state));
    run.attention.push_back(std::move(attention));
  }
  return run;
}

TinyPruning PruneTiny(const TinyModel& model, std::span<const double> x,
                      std::span<const int64_t> positions, std::span<const int64_t> retained,
                      size_t accepted) {
  TinyPruning pruning;
  pruning.full = RunTiny(model, 0, x, positions);
  const Vector& shared = pruning.full.states.at(accepted);
  Vector start;
  std::vector<int64_t> kept_positions;
  for (int64_t u : retained) {
    const auto row = shared.begin() + u * model.hidden;
    start.insert(start.end(), row, row + model.hidden);
    kept_positions.push_back(positions[u]);
  }
  pruning.pruned = RunTiny(model, accepted, start, kept_positions);
  for (size_t l = 0; l < pruning.pruned.states.size(); ++l) {
    const Vector& full = pruning.full.states[accepted + l];
    double largest = 0;
    for (size_t i = 0; i < retained.size(); ++i) {
      double squares = 0;
      for (int64_t c = 0; c < model.hidden; ++c) {
        const double off =
            full[retained[i] * model.hidden + c] - pruning.pruned.states[l][i * model.hidden + c];
        squares += off * off;
      }
      largest = std::max(largest, std::sqrt(squares));
    }
    pruning.differences.push_back(largest);
  }
  return pruning;
}

Vector LargestRemovedMass(TensorView<const double, 3> attention, std::span<const int64_t> retained,
                          std::span<const int64_t> removed) {
  const auto [n_heads, n_rows, n_tokens] = attention.shape;
  Vector largest(n_heads, 0.0);
  for (int64_t h = 0; h < n_heads; ++h) {
    for (int64_t u : retained) {
      double mass = 0;
      for (int64_t j : removed) mass += attention.data[(h * n_rows + u) * n_tokens + j];
      largest[h] = std::max(largest[h], mass);
    }
  }
  return largest;
}

PagePartition TwoPageExample(double alpha, int64_t page_tokens) {
  const double log_size = std::log(static_cast<double>(page_tokens));
  return {-log_size + std::log((1 - alpha) * (1 - alpha) + alpha * alpha),
          -log_size + std::log(alpha * (1 - alpha)) / 2};
}

}  // namespace winnow::reference
