// The Euclidean projection onto the hull of the candidates, by Frank-Wolfe.
//
// Not used on f_ε: that gap is infinite wherever a weight is zero.
#pragma once

#include <span>

#include "policy/solver/solver.h"

namespace winnow {

enum class FrankWolfeStep {
  kExact,    // line search; f never rises
  kClassic,  // 2/(t + 2), t = 0, 1, …: forgets the start in its first step
};

struct FrankWolfeOptions {
  int iterations = 12;   // at most; >= 0
  double tolerance = 0;  // stops once the gap is at most this
  FrankWolfeStep step = FrankWolfeStep::kExact;
};

// Minimises f from the atom with the largest <q, u_j>; the lowest index wins ties. After t steps at
// most t + 1 weights are not zero. The gap is h − <r, y>; a gap that is zero up to rounding counts
// as converged. weights [M]; `trace` may be null.
SolverResult FrankWolfe(const HullProblem& problem, const FrankWolfeOptions& options,
                        SolverScratch& scratch, std::span<double> weights,
                        SolverTrace* trace = nullptr);

}  // namespace winnow
