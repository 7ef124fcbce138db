#include "policy/solver/frank_wolfe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "policy/solver/gaps.h"

namespace winnow {
namespace {

int64_t ArgMax(std::span<const double> x) {
  return std::max_element(x.begin(), x.end()) - x.begin();
}

// A score is a sum of D products, so it is off by about √D·2⁻⁵³ of its terms; a gap of this many
// units of the scores' size is no direction to walk in.
double RoundingOfGap(std::span<const double> scores) {
  double max = 0;
  for (double score : scores) max = std::max(max, std::abs(score));
  return 16 * std::numeric_limits<double>::epsilon() * max;
}

void Start(const HullProblem& problem, SolverScratch& scratch, std::span<double> weights) {
  const int64_t dim = problem.atoms.shape[1];
  scratch.readout.assign(dim, 0.0);
  EvaluateReadout(problem, scratch);  // with y = 0 the scores are <q, u_j>
  const int64_t start = ArgMax(scratch.scores);
  std::fill(weights.begin(), weights.end(), 0.0);
  weights[start] = 1;
  std::copy_n(problem.atoms.row(start), dim, scratch.readout.begin());
}

// Moves y and the weights by `length` (or by the best length within [0, 1] if that is negative)
// towards atom `vertex`. <r, u − y> is the gap itself.
void Walk(const HullProblem& problem, int64_t vertex, double gap, double length,
          SolverScratch& scratch, std::span<double> weights) {
  const double* atom = problem.atoms.row(vertex);
  std::vector<double>& y = scratch.readout;
  if (length < 0) {
    double square = 0;
    for (size_t d = 0; d < y.size(); ++d) square += (atom[d] - y[d]) * (atom[d] - y[d]);
    length = square > 0 ? std::clamp(gap / square, 0.0, 1.0) : 0.0;
  }
  for (size_t d = 0; d < y.size(); ++d) y[d] += length * (atom[d] - y[d]);
  for (double& weight : weights) weight *= 1 - length;
  weights[vertex] += length;
}

}  // namespace

SolverResult FrankWolfe(const HullProblem& problem, const FrankWolfeOptions& options,
                        SolverScratch& scratch, std::span<double> weights, SolverTrace* trace) {
  const auto [n_atoms, dim] = problem.atoms.shape;
  WINNOW_CHECK(options.iterations >= 0 && n_atoms >= 1 && std::ssize(weights) == n_atoms &&
                   std::ssize(problem.query) == dim,
               "{} iterations, {} atoms of {}, query of {}, {} weights", options.iterations,
               n_atoms, dim, problem.query.size(), weights.size());
  if (trace != nullptr) *trace = {};
  Start(problem, scratch, weights);

  SolverResult result{SolverStatus::kIterationLimit};
  for (;; ++result.iterations) {
    EvaluateReadout(problem, scratch);
    result.gap = FrankWolfeGap(scratch.scores, weights);
    if (!std::isfinite(result.gap)) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      std::fill(weights.begin(), weights.end(), std::numeric_limits<double>::quiet_NaN());
      return {SolverStatus::kNotFinite, result.iterations, kInfinity, kInfinity};
    }
    if (trace != nullptr) trace->gaps.push_back(result.gap);
    if (result.gap <= options.tolerance || result.gap <= RoundingOfGap(scratch.scores)) {
      result.status = SolverStatus::kConverged;
      break;
    }
    if (result.iterations == options.iterations) break;
    const int64_t vertex = ArgMax(scratch.scores);
    if (trace != nullptr) trace->vertices.push_back(vertex);
    const double length =
        options.step == FrankWolfeStep::kClassic ? 2.0 / (result.iterations + 2.0) : -1.0;
    Walk(problem, vertex, result.gap, length, scratch, weights);
  }
  result.distance_bound = FrankWolfeDistanceBound(result.gap);
  return result;
}

}  // namespace winnow
