#include "policy/solver/gaps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {

void EvaluateReadout(const HullProblem& problem, SolverScratch& scratch) {
  const int64_t n_atoms = problem.atoms.shape[0];
  const int64_t dim = problem.atoms.shape[1];
  scratch.residual.resize(dim);
  scratch.scores.resize(n_atoms);
  for (int64_t d = 0; d < dim; ++d) scratch.residual[d] = problem.query[d] - scratch.readout[d];
  for (int64_t j = 0; j < n_atoms; ++j) {
    const double* atom = problem.atoms.row(j);
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += scratch.residual[d] * atom[d];
    scratch.scores[j] = dot;
  }
}

void EvaluateWeights(const HullProblem& problem, std::span<const double> weights,
                     SolverScratch& scratch) {
  const int64_t n_atoms = problem.atoms.shape[0];
  const int64_t dim = problem.atoms.shape[1];
  WINNOW_CHECK(n_atoms >= 1 && std::ssize(problem.query) == dim && std::ssize(weights) == n_atoms,
               "{} atoms of {}, query of {}, {} weights", n_atoms, dim, problem.query.size(),
               weights.size());
  scratch.readout.assign(dim, 0.0);
  for (int64_t j = 0; j < n_atoms; ++j) {
    const double* atom = problem.atoms.row(j);
    for (int64_t d = 0; d < dim; ++d) scratch.readout[d] += weights[j] * atom[d];
  }
  EvaluateReadout(problem, scratch);
}

double FrankWolfeGap(std::span<const double> scores, std::span<const double> weights) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double gap = 0;
  for (size_t j = 0; j < scores.size(); ++j) gap += weights[j] * (max - scores[j]);
  return gap;
}

double EntropicGap(std::span<const double> scores, std::span<const double> log_weights,
                   double eps) {
  WINNOW_CHECK(eps > 0 && scores.size() == log_weights.size(), "ε = {}", eps);
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  double max = kMinusInfinity;
  for (double score : scores) max = std::max(max, score / eps);
  double sum = 0;
  for (double score : scores) sum += std::exp(score / eps - max);
  const double log_partition = max + std::log(sum);
  double gap = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (log_weights[j] == kMinusInfinity) continue;
    gap += std::exp(log_weights[j]) * (log_weights[j] - (scores[j] / eps - log_partition));
  }
  return gap < 0 ? 0.0 : eps * gap;
}

double FrankWolfeDistanceBound(double gap) { return std::sqrt(gap); }

double EntropicDistanceBound(double gap) { return std::sqrt(2 * gap); }

double EntropicValueBound(double gap, double eps, double value_radius) {
  return value_radius * std::sqrt(2 * gap / eps);
}

double MeanRadius(TensorView<const double, 2> atoms) {
  const int64_t n_atoms = atoms.shape[0];
  const int64_t dim = atoms.shape[1];
  WINNOW_CHECK(n_atoms >= 1);
  std::vector<double> mean(dim, 0.0);
  for (int64_t j = 0; j < n_atoms; ++j) {
    // Divided before they are added: the sum of large atoms must not overflow.
    for (int64_t d = 0; d < dim; ++d) mean[d] += atoms.row(j)[d] / static_cast<double>(n_atoms);
  }
  double max_square = 0;
  for (int64_t j = 0; j < n_atoms; ++j) {
    double square = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const double difference = atoms.row(j)[d] - mean[d];
      square += difference * difference;
    }
    if (std::isnan(square)) return square;
    max_square = std::max(max_square, square);
  }
  return std::sqrt(max_square);
}

double LogSumExp(std::span<const double> x) {
  double max = -std::numeric_limits<double>::infinity();
  for (double value : x) max = std::max(max, value);
  if (std::isinf(max)) return max;
  double sum = 0;
  for (double value : x) sum += std::exp(value - max);
  return max + std::log(sum);
}

}  // namespace winnow
