#include "policy/solver/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {

SolverResult SoftmaxWeights(std::span<const double> scores, double eps, std::span<double> weights) {
  WINNOW_CHECK(eps > 0 && !scores.empty() && scores.size() == weights.size(), "ε = {}", eps);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double max = -kInfinity;
  for (double score : scores) max = std::max(max, score);
  double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    weights[j] = std::exp((scores[j] - max) / eps);
    sum += weights[j];
  }
  if (!std::isfinite(sum)) {  // a NaN score, or a maximum that is not finite
    std::fill(weights.begin(), weights.end(), std::numeric_limits<double>::quiet_NaN());
    return {SolverStatus::kNotFinite, 0, kInfinity, kInfinity};
  }
  for (double& weight : weights) weight /= sum;
  return {SolverStatus::kConverged, 0, 0.0, 0.0};
}

}  // namespace winnow
