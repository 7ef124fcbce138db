#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"

namespace winnow::reference {

double Attention(std::span<const double> q, TensorView<const double, 2> k,
                 TensorView<const double, 2> v, double scale, std::span<double> out) {
  const auto dim = static_cast<int64_t>(q.size());
  const int64_t n = k.shape[0];
  WINNOW_CHECK(k.shape[1] == dim && v.shape == k.shape && out.size() == q.size());
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

  std::fill(out.begin(), out.end(), 0.0);
  std::vector<double> scores(static_cast<size_t>(n));
  double max = kMinusInfinity;
  for (int64_t i = 0; i < n; ++i) {
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += q[d] * k.row(i)[d];
    scores[i] = scale * dot;
    if (std::isnan(scores[i]) || scores[i] > max) max = scores[i];
  }
  if (max == kMinusInfinity) return kMinusInfinity;

  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double weight = std::exp(scores[i] - max);
    sum += weight;
    for (int64_t d = 0; d < dim; ++d) out[d] += weight * v.row(i)[d];
  }
  for (double& value : out) value /= sum;
  return max + std::log(sum);
}

}  // namespace winnow::reference
