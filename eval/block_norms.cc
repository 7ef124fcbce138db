#include "eval/block_norms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "model/layer_matrices.h"
#include "policy/prefill/operator_norm.h"

namespace winnow {
namespace {

// Of one matrix: with thousands of them far below anything that one would act upon.
constexpr double kFailure = 1e-9;

std::vector<double> Widened(std::span<const float> x) { return {x.begin(), x.end()}; }

NormaliserBounds RmsBounds(const std::vector<float>& gamma, double epsilon) {
  return ComputeNormaliserBounds(Widened(gamma), {}, epsilon);
}

double Length(std::span<const float> x) {
  double squares = 0;
  for (float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

// Eigenvalues of the Gram matrices of all heads would take minutes.
double UpperNorm(TensorView<const float, 2> matrix) {
  return OperatorNormBounds(matrix, /*seed=*/1, kFailure).high;
}

// ‖W‖ of one head's rows, and the bound of what they give for an input of norm at most `input`.
struct HeadBound {
  double norm = 0;
  double bound = 0;
};
HeadBound BoundHead(const FloatMatrix& matrix, const std::vector<float>& bias,
                    const std::vector<float>& gamma, int64_t head, int64_t dim, double input,
                    double epsilon) {
  HeadBound out;
  out.norm = UpperNorm(matrix.Rows(head * dim, dim));
  out.bound = out.norm * input;
  if (!bias.empty()) out.bound += Length(std::span(bias).subspan(head * dim, dim));
  if (!gamma.empty()) {  // normed head by head
    const NormaliserBounds normed = RmsBounds(gamma, epsilon);
    out.norm *= normed.lipschitz;
    out.bound = normed.output;
  }
  return out;
}

class LayerNorms {
 public:
  LayerNorms(const AttentionMatrices& matrices, const ModelConfig& config)
      : m_(matrices), config_(config) {}

  void Compute(ThreadPool* pool, BlockNorms* norms, double* output_low) {
    const auto epsilon = static_cast<double>(config_.norm_epsilon);
    const NormaliserBounds first = RmsBounds(m_.norm, epsilon);
    const int64_t n_q = config_.query_heads;
    const int64_t n_kv = config_.kv_heads;
    const int64_t dim = config_.head_dim;
    std::vector<HeadBound> q(n_q), k(n_kv), v(n_kv);
    NormInterval output;
    // The largest matrix first.
    pool->ForEach(1 + n_q + 2 * n_kv, [&](int64_t task, int /*thread*/) {
      const int64_t head = task - 1;
      if (task == 0) {
        output = OperatorNormBounds(m_.output.View(), /*seed=*/1, kFailure);
      } else if (head < n_q) {
        q[head] = BoundHead(m_.q, m_.q_bias, m_.q_norm, head, dim, first.output, epsilon);
      } else if (head < n_q + n_kv) {
        k[head - n_q] =
            BoundHead(m_.k, m_.k_bias, m_.k_norm, head - n_q, dim, first.output, epsilon);
      } else {
        v[head - n_q - n_kv] =
            BoundHead(m_.v, m_.v_bias, {}, head - n_q - n_kv, dim, first.output, epsilon);
      }
    });
    const double after = m_.post_norm.empty() ? 1 : RmsBounds(m_.post_norm, epsilon).lipschitz;
    norms->attention_lipschitz = first.lipschitz;
    norms->mlp_lipschitz = RmsBounds(m_.mlp_norm, epsilon).lipschitz;
    norms->mlp = std::numeric_limits<double>::quiet_NaN();
    norms->output = output.high * after;
    *output_low = output.low * after;
    norms->logit_scale = static_cast<double>(config_.attention_scale);
    for (int64_t h = 0; h < n_q; ++h) {
      const int64_t g = h / config_.group_size();
      norms->heads.push_back({q[h].norm, k[g].norm, v[g].norm, q[h].bound, k[g].bound, v[g].bound});
    }
  }

 private:
  const AttentionMatrices& m_;
  const ModelConfig& config_;
};

}  // namespace

ModelNorms ReadModelNorms(const GgufFile& file, const ModelConfig& config, int first,
                          ThreadPool* pool, const std::function<bool(int layer)>& on_layer) {
  ModelNorms norms;
  norms.layers.resize(config.n_layers);
  norms.output_low.resize(config.n_layers);
  for (int layer = first; layer < config.n_layers; ++layer) {
    if (on_layer && !on_layer(layer)) return norms;
    const AttentionMatrices matrices = ReadAttentionMatrices(file, config, layer);
    LayerNorms(matrices, config).Compute(pool, &norms.layers[layer], &norms.output_low[layer]);
    norms.failure += kFailure * (1 + config.query_heads + 2 * config.kv_heads);
  }
  const ReadoutBounds readout = ReadReadoutBounds(file, config);
  // A cap on logits (gemma) has a slope of at most 1.
  norms.readout = readout.largest_row *
                  RmsBounds(readout.norm, static_cast<double>(config.norm_epsilon)).lipschitz;
  return norms;
}

}  // namespace winnow
