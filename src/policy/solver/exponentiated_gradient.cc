#include "policy/solver/exponentiated_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "policy/solver/gaps.h"

namespace winnow {
namespace {

// Weights stay in the log domain: those off the face fall below 1e-308 within some hundred steps
// and a weight that is zero could never come back.
void Step(std::span<const double> scores, double step, double eps, std::span<double> log_weights) {
  for (size_t j = 0; j < scores.size(); ++j) {
    log_weights[j] = (1 - step * eps) * log_weights[j] + step * scores[j];
  }
  const double log_sum = LogSumExp(log_weights);
  for (double& log_weight : log_weights) log_weight -= log_sum;
}

double Gap(const SolverScratch& scratch, double eps, std::span<const double> weights) {
  return eps > 0 ? EntropicGap(scratch.scores, scratch.log_weights, eps)
                 : FrankWolfeGap(scratch.scores, weights);
}

}  // namespace

double ExponentiatedGradientStep(double mean_radius, double eps) {
  return 1 / (mean_radius * mean_radius + eps);
}

SolverResult ExponentiatedGradient(const HullProblem& problem,
                                   const ExponentiatedGradientOptions& options,
                                   SolverScratch& scratch, std::span<double> weights,
                                   SolverTrace* trace) {
  const int64_t n_atoms = problem.atoms.shape[0];
  WINNOW_CHECK(options.eps >= 0 && options.iterations >= 0 && n_atoms >= 1,
               "ε = {}, {} iterations, {} atoms", options.eps, options.iterations, n_atoms);
  if (trace != nullptr) *trace = {};
  const double step = ExponentiatedGradientStep(MeanRadius(problem.atoms), options.eps);
  scratch.log_weights.assign(n_atoms, -std::log(static_cast<double>(n_atoms)));
  std::fill(weights.begin(), weights.end(), 1.0 / static_cast<double>(n_atoms));

  SolverResult result{SolverStatus::kIterationLimit};
  for (;; ++result.iterations) {
    EvaluateWeights(problem, weights, scratch);
    result.gap = Gap(scratch, options.eps, weights);
    if (!std::isfinite(result.gap) || std::isnan(step)) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      std::fill(weights.begin(), weights.end(), std::numeric_limits<double>::quiet_NaN());
      return {SolverStatus::kNotFinite, result.iterations, kInfinity, kInfinity};
    }
    if (trace != nullptr) trace->gaps.push_back(result.gap);
    // Where all atoms are equal and ε = 0 the step is infinite, but the gap is rounding noise.
    if (result.gap <= options.tolerance || std::isinf(step)) {
      result.status = SolverStatus::kConverged;
      break;
    }
    if (result.iterations == options.iterations) break;
    Step(scratch.scores, step, options.eps, scratch.log_weights);
    for (int64_t j = 0; j < n_atoms; ++j) weights[j] = std::exp(scratch.log_weights[j]);
  }
  result.distance_bound =
      options.eps > 0 ? EntropicDistanceBound(result.gap) : FrankWolfeDistanceBound(result.gap);
  return result;
}

}  // namespace winnow
