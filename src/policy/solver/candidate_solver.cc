#include "policy/solver/candidate_solver.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/error.h"
#include "ops/reference_hull.h"
#include "policy/certify/leakage.h"
#include "policy/nearest_name.h"
#include "policy/solver/exponentiated_gradient.h"
#include "policy/solver/frank_wolfe.h"
#include "policy/solver/gaps.h"

namespace winnow {
namespace {

constexpr int64_t kMaxIterations = 100'000;
constexpr double kMaxEps = 1e9;
constexpr double kMinEps = 1e-12;
constexpr double kAnyEps = 1;

bool AllFinite(std::span<const double> x) {
  return std::all_of(x.begin(), x.end(), [](double value) { return std::isfinite(value); });
}

}  // namespace

std::vector<std::string> SolverNames() { return {"softmax", "eg", "fw"}; }

SolverOptions ParseSolver(std::string_view name, Params& params) {
  SolverOptions options;
  if (name == "softmax") return options;
  if (name != "eg" && name != "fw") {
    Throw(ErrorKind::kUsage, "{}", UnknownName("solver", name, SolverNames()));
  }
  options.kind = name == "eg" ? SolverKind::kEntropic : SolverKind::kFrankWolfe;
  options.iterations = static_cast<int>(params.Int("iters", options.iterations, 0, kMaxIterations));
  if (options.kind == SolverKind::kFrankWolfe) return options;
  if (params.Has("eps") && params.Has("leakage")) {
    Throw(ErrorKind::kUsage, "{}: eps and leakage contradict each other: one of them",
          params.policy());
  }
  if (params.Has("leakage")) {
    options.leakage = params.Number("leakage", 0.01, 1e-9, 1);
  } else {
    options.eps = params.Number("eps", options.eps, kMinEps, kMaxEps);
  }
  return options;
}

double EpsilonForProblem(const HullProblem& problem, double leakage) {
  const reference::HullProjection projection =
      reference::ProjectOntoHull(problem.atoms, problem.query);
  const SupportGeometry geometry{.n_atoms = problem.atoms.shape[0],
                                 .n_support = std::ssize(projection.support),
                                 .gap = projection.support_gap,
                                 // At least the diameter, and linear in the atoms.
                                 .diameter = 2 * MeanRadius(problem.atoms),
                                 .entropy = reference::Entropy(projection.weights)};
  if (geometry.n_atoms == geometry.n_support) return kAnyEps;
  const double eps = CertifiedEpsilon(geometry, leakage);
  return std::isfinite(eps) ? eps : kAnyEps;
}

CandidateSolution SolveCandidates(const HullProblem& problem, const SolverOptions& options,
                                  SolverScratch& scratch, std::span<double> weights) {
  WINNOW_CHECK(options.projects());
  if (options.kind == SolverKind::kFrankWolfe) {
    return {FrankWolfe(problem, {.iterations = options.iterations}, scratch, weights)};
  }
  double eps = options.eps;
  // What is not finite has no projection; the solver says so.
  if (options.leakage > 0 && AllFinite(problem.atoms.span()) && AllFinite(problem.query)) {
    eps = EpsilonForProblem(problem, options.leakage);
  }
  return {ExponentiatedGradient(problem, {.eps = eps, .iterations = options.iterations}, scratch,
                                weights),
          eps};
}

}  // namespace winnow
