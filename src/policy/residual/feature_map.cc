#include "policy/residual/feature_map.h"

#include <cmath>
#include <numbers>

#include "core/check.h"

namespace winnow {
namespace {

double Gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }

// out = matrix·x + bias
template <typename W>
void Affine(TensorView<const W, 2> matrix, std::span<const W> bias, std::span<const double> x,
            std::span<double> out) {
  WINNOW_CHECK(matrix.shape[0] == std::ssize(out) && matrix.shape[1] == std::ssize(x) &&
                   bias.size() == out.size(),
               "[{}, {}] with a bias of {}, from {} to {}", matrix.shape[0], matrix.shape[1],
               bias.size(), x.size(), out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const W* row = matrix.row(static_cast<int64_t>(i));
    double sum = bias[i];
    for (size_t j = 0; j < x.size(); ++j) sum += row[j] * x[j];
    out[i] = sum;
  }
}

}  // namespace

int64_t FeatureMapParameters(const FeatureMapShape& shape, int64_t n_hidden_layers,
                             int64_t n_scalars) {
  return shape.hidden * (shape.head_dim + 1) +
         (n_hidden_layers - 1) * shape.hidden * (shape.hidden + 1) +
         shape.n_features * (shape.hidden + 1) + n_scalars;
}

int64_t FeatureMapMultiplyAdds(const FeatureMapShape& shape) {
  return shape.hidden * (shape.head_dim + 2 * shape.hidden + shape.n_features);
}

template <typename W>
void LogFeatures(const FeatureMap<W>& map, std::span<const double> x, FeatureMapScratch& scratch,
                 std::span<double> log_phi) {
  const auto hidden = static_cast<size_t>(map.w_s.shape[0]);
  scratch.g0.resize(hidden);
  scratch.inner.resize(hidden);
  scratch.g1.resize(hidden);
  Affine<W>(map.w_s, map.b_s, x, scratch.g0);
  Affine<W>(map.w_1, map.b_1, scratch.g0, scratch.inner);
  for (double& value : scratch.inner) value = Gelu(value);
  Affine<W>(map.w_2, map.b_2, scratch.inner, scratch.g1);
  for (size_t i = 0; i < hidden; ++i) {
    scratch.g1[i] = scratch.g0[i] + map.alpha * scratch.g1[i];
  }
  Affine<W>(map.w_o, map.b_o, scratch.g1, log_phi);
  for (double& value : log_phi) value += map.log_gain;
}

template void LogFeatures<float>(const FeatureMap<float>&, std::span<const double>,
                                 FeatureMapScratch&, std::span<double>);
template void LogFeatures<double>(const FeatureMap<double>&, std::span<const double>,
                                  FeatureMapScratch&, std::span<double>);

}  // namespace winnow
