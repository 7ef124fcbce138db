#include "policy/prefill/operator_norm.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/check.h"
#include "core/rng.h"

namespace winnow {
namespace {

double Length(const std::vector<double>& x) {
  double squares = 0;
  for (double value : x) squares += value * value;
  return std::sqrt(squares);
}

// W x, and Wᵀ of it; both row by row, so that the inner loops run along memory.
class GramProduct {
 public:
  explicit GramProduct(TensorView<const float, 2> matrix)
      : matrix_(matrix), image_(matrix.shape[0]) {}

  // x [columns] becomes WᵀW x; returns ‖W x‖.
  double Apply(std::vector<double>& x) {
    const auto [rows, columns] = matrix_.shape;
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = matrix_.row(i);
      // Eight sums that do not wait for each other.
      double sums[8] = {};
      int64_t j = 0;
      for (; j + 8 <= columns; j += 8) {
        for (int64_t k = 0; k < 8; ++k) sums[k] += static_cast<double>(row[j + k]) * x[j + k];
      }
      for (; j < columns; ++j) sums[0] += static_cast<double>(row[j]) * x[j];
      image_[i] = 0;
      for (double sum : sums) image_[i] += sum;
    }
    std::fill(x.begin(), x.end(), 0.0);
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = matrix_.row(i);
      for (int64_t j = 0; j < columns; ++j) x[j] += image_[i] * static_cast<double>(row[j]);
    }
    return Length(image_);
  }

 private:
  TensorView<const float, 2> matrix_;
  std::vector<double> image_;
};

}  // namespace

NormInterval OperatorNormBounds(TensorView<const float, 2> matrix, uint64_t seed, double failure) {
  WINNOW_CHECK(0 < failure && failure < 1);
  constexpr int kIterations = 200;
  const int64_t n = matrix.shape[1];
  Rng rng(seed);
  std::vector<double> x(n);
  for (double& value : x) value = rng.Normal();
  GramProduct gram(matrix);
  NormInterval bounds;
  double log_growth = 0;  // of G^m x, ‖x‖ = 1, G = WᵀW
  double length = Length(x);
  for (int i = 0; i < kIterations; ++i) {
    for (double& value : x) value /= length;
    bounds.low = std::max(bounds.low, gram.Apply(x));
    length = Length(x);
    if (length == 0) return bounds;  // a random x is in the kernel only of W = 0
    if (!std::isfinite(length)) return {length - length, length - length};
    log_growth += std::log(length);
  }
  // ‖G^m x‖ >= λ₁^m·|c|, c the component of x along the first eigenvector. x is uniform on the
  // sphere, where the density of c is at most √(n/2π) (n >= 3), so that |c| is below t =
  // δ·√(π/2n) with probability at most δ.
  const double t =
      failure * std::sqrt(std::numbers::pi / (2 * static_cast<double>(std::max<int64_t>(n, 3))));
  bounds.high = std::exp((log_growth - std::log(t)) / (2.0 * kIterations));
  return bounds;
}

}  // namespace winnow
