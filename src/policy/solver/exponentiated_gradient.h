// The entropic projection onto the hull of the candidates, by exponentiated gradient.
#pragma once

#include <span>

#include "policy/solver/solver.h"

namespace winnow {

struct ExponentiatedGradientOptions {
  double eps = 1;        // >= 0; with 0 it solves the plain projection
  int iterations = 12;   // at most; >= 0
  double tolerance = 0;  // stops once the gap is at most this
};

// η = 1/(ρ² + ε) with ρ = max_j ‖u_j − mean u‖; infinite where all atoms are equal and ε = 0.
double ExponentiatedGradientStep(double mean_radius, double eps);

// Minimises f_ε from uniform weights: log α ← (1 − ηε)·log α + η·<r, u_j>, normalised. The gap is
// G = ε·KL(α ‖ softmax(<r, u_j>/ε)), or Frank-Wolfe's where ε = 0. weights [M]; `trace` may be
// null.
SolverResult ExponentiatedGradient(const HullProblem& problem,
                                   const ExponentiatedGradientOptions& options,
                                   SolverScratch& scratch, std::span<double> weights,
                                   SolverTrace* trace = nullptr);

}  // namespace winnow
