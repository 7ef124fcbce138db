// The learned feature map of one head: log φ(x) for a query or key after rotation, and its size
// (Residual-Mass Accounting, Table 12).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

struct FeatureMapShape {
  int64_t head_dim = 0;
  int64_t hidden = 512;
  int64_t n_features = 64;
  bool operator==(const FeatureMapShape&) const = default;
};

// Trained numbers of one map. `n_hidden_layers` counts W_s and the matrices between hidden vectors.
int64_t FeatureMapParameters(const FeatureMapShape& shape, int64_t n_hidden_layers = 3,
                             int64_t n_scalars = 2);
// Multiplications of one evaluation, biases aside.
int64_t FeatureMapMultiplyAdds(const FeatureMapShape& shape);

// g0 = W_s·x + b_s; g1 = g0 + α·(W_2·GELU(W_1·g0 + b_1) + b_2); log φ = log_gain + W_o·g1 + b_o.
// W is float (a file's) or double (fixtures); the arithmetic is double.
template <typename W>
struct FeatureMap {
  TensorView<const W, 2> w_s;  // [hidden, head_dim]
  TensorView<const W, 2> w_1;  // [hidden, hidden]
  TensorView<const W, 2> w_2;  // [hidden, hidden]
  TensorView<const W, 2> w_o;  // [n_features, hidden]
  std::span<const W> b_s;      // [hidden]
  std::span<const W> b_1;      // [hidden]
  std::span<const W> b_2;      // [hidden]
  std::span<const W> b_o;      // [n_features]
  double alpha = 0;
  double log_gain = 0;  // the second scalar of Table 12, which the paper does not specify

  FeatureMapShape shape() const { return {w_s.shape[1], w_s.shape[0], w_o.shape[0]}; }
};

// Kept between calls, so that nothing is allocated after the first.
struct FeatureMapScratch {
  std::vector<double> g0, inner, g1;  // [hidden] of each vector
  std::vector<double> x, log_phi;     // of the vectors that pass together
};

// log_phi [n_features] of x [head_dim]; GELU in its erf form. The map's parts have to fit one
// another (a broken invariant otherwise).
template <typename W>
void LogFeatures(const FeatureMap<W>& map, std::span<const double> x, FeatureMapScratch& scratch,
                 std::span<double> log_phi);

// log_phi [T, n_features] of rows x [T, head_dim], several at a time: the numbers of LogFeatures,
// rounded to float.
template <typename W>
void LogFeaturesOfRows(const FeatureMap<W>& map, TensorView<const double, 2> x,
                       FeatureMapScratch& scratch, TensorView<float, 2> log_phi);

}  // namespace winnow
