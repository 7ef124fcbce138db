#include "policy/residual/feature_map.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace winnow {
namespace {

double Gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }

// Vectors that pass through a map together, side by side in memory: their sums do not wait for one
// another. A sum's terms are added in the same order for any number of them.
constexpr int64_t kTogether = 8;

// Rows [i, i + kRows) of out = matrix·x + bias; x [columns, kVectors], out [rows, kVectors].
template <int64_t kRows, int64_t kVectors, typename W>
void AffineRows(TensorView<const W, 2> matrix, std::span<const W> bias, const double* x, int64_t i,
                double* out) {
  double sums[kRows][kVectors];
  for (int64_t r = 0; r < kRows; ++r) std::fill_n(sums[r], kVectors, double{bias[i + r]});
  for (int64_t j = 0; j < matrix.shape[1]; ++j) {
    for (int64_t r = 0; r < kRows; ++r) {
      const double weight = matrix.row(i + r)[j];
      for (int64_t v = 0; v < kVectors; ++v) sums[r][v] += weight * x[j * kVectors + v];
    }
  }
  std::copy_n(sums[0], kRows * kVectors, out + i * kVectors);
}

// out = matrix·x + bias for kVectors vectors.
template <int64_t kVectors, typename W>
void Affine(TensorView<const W, 2> matrix, std::span<const W> bias, std::span<const double> x,
            std::span<double> out) {
  WINNOW_CHECK(matrix.shape[0] * kVectors == std::ssize(out) &&
                   matrix.shape[1] * kVectors == std::ssize(x) &&
                   std::ssize(bias) == matrix.shape[0],
               "[{}, {}] with a bias of {}, from {} to {}", matrix.shape[0], matrix.shape[1],
               bias.size(), x.size(), out.size());
  constexpr int64_t kRows = kTogether / kVectors;
  int64_t i = 0;
  for (; i + kRows <= matrix.shape[0]; i += kRows) {
    AffineRows<kRows, kVectors>(matrix, bias, x.data(), i, out.data());
  }
  for (; i < matrix.shape[0]; ++i) AffineRows<1, kVectors>(matrix, bias, x.data(), i, out.data());
}

// log_phi [n_features, kVectors] of x [head_dim, kVectors].
template <int64_t kVectors, typename W>
void MapVectors(const FeatureMap<W>& map, std::span<const double> x, FeatureMapScratch& scratch,
                std::span<double> log_phi) {
  const auto n = static_cast<size_t>(map.w_s.shape[0] * kVectors);
  scratch.g0.resize(n);
  scratch.inner.resize(n);
  scratch.g1.resize(n);
  Affine<kVectors>(map.w_s, map.b_s, x, scratch.g0);
  Affine<kVectors, W>(map.w_1, map.b_1, scratch.g0, scratch.inner);
  for (double& value : scratch.inner) value = Gelu(value);
  Affine<kVectors, W>(map.w_2, map.b_2, scratch.inner, scratch.g1);
  for (size_t i = 0; i < n; ++i) scratch.g1[i] = scratch.g0[i] + map.alpha * scratch.g1[i];
  Affine<kVectors, W>(map.w_o, map.b_o, scratch.g1, log_phi);
  for (double& value : log_phi) value += map.log_gain;
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
  MapVectors<1>(map, x, scratch, log_phi);
}

template <typename W>
void LogFeaturesOfRows(const FeatureMap<W>& map, TensorView<const double, 2> x,
                       FeatureMapScratch& scratch, TensorView<float, 2> log_phi) {
  const FeatureMapShape shape = map.shape();
  WINNOW_CHECK(x.shape[1] == shape.head_dim && log_phi.shape[1] == shape.n_features &&
                   x.shape[0] == log_phi.shape[0],
               "[{}, {}] from [{}, {}]", log_phi.shape[0], log_phi.shape[1], x.shape[0],
               x.shape[1]);
  scratch.x.resize(shape.head_dim * kTogether);
  scratch.log_phi.resize(shape.n_features * kTogether);
  for (int64_t first = 0; first < x.shape[0]; first += kTogether) {
    const int64_t n = std::min(kTogether, x.shape[0] - first);
    std::fill(scratch.x.begin(), scratch.x.end(), 0.0);
    for (int64_t v = 0; v < n; ++v) {
      for (int64_t c = 0; c < shape.head_dim; ++c) {
        scratch.x[c * kTogether + v] = x.row(first + v)[c];
      }
    }
    MapVectors<kTogether>(map, scratch.x, scratch, scratch.log_phi);
    for (int64_t v = 0; v < n; ++v) {
      for (int64_t f = 0; f < shape.n_features; ++f) {
        log_phi.row(first + v)[f] = static_cast<float>(scratch.log_phi[f * kTogether + v]);
      }
    }
  }
}

template void LogFeatures<float>(const FeatureMap<float>&, std::span<const double>,
                                 FeatureMapScratch&, std::span<double>);
template void LogFeatures<double>(const FeatureMap<double>&, std::span<const double>,
                                  FeatureMapScratch&, std::span<double>);
template void LogFeaturesOfRows<float>(const FeatureMap<float>&, TensorView<const double, 2>,
                                       FeatureMapScratch&, TensorView<float, 2>);

}  // namespace winnow
