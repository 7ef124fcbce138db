// The `solver=` of an arm: what turns the candidates of one query head into weights.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/params.h"
#include "policy/solver/solver.h"

namespace winnow {

enum class SolverKind : uint8_t {
  kSoftmax,     // the model's own attention
  kEntropic,    // exponentiated gradient on f_ε
  kFrankWolfe,  // Frank-Wolfe on f
};

struct SolverOptions {
  SolverKind kind = SolverKind::kSoftmax;
  int iterations = 12;  // at most
  double eps = 1;       // of f_ε, in units of the unscaled q·k
  double leakage = 0;   // > 0: ε is the largest one certified to leak at most that much instead

  // The weights of a projection are no attention weights: there is no mass to account for.
  bool projects() const { return kind != SolverKind::kSoftmax; }
};

std::vector<std::string> SolverNames();

// `name` with its parameters: `eg` has iters=12 and eps=1 or leakage, `fw` iters=12. Throws
// Error(kUsage) for an unknown name (nearest offered), a value out of range or both eps and
// leakage.
SolverOptions ParseSolver(std::string_view name, Params& params);

struct CandidateSolution {
  SolverResult result;
  double eps = 0;  // that was solved for; 0: the plain projection
};

// Solves the projection `options.kind` names, not softmax; weights [M].
CandidateSolution SolveCandidates(const HullProblem& problem, const SolverOptions& options,
                                  SolverScratch& scratch, std::span<double> weights);

// The largest ε whose leakage off the support of the Euclidean projection is certified to be at
// most `leakage` (Vashista 10.5 with spec's constants: `CertifiedEpsilon`). The projection is
// solved exactly for it, which costs far more than the iterations. 0 where the support gap is zero:
// there only the projection itself leaks nothing. 1 where no atom lies off the support, since then
// every ε will do.
double EpsilonForProblem(const HullProblem& problem, double leakage);

}  // namespace winnow
