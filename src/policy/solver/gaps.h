// Duality gaps of weights on the simplex and what they certify.
//
// A gap over the candidates says nothing of tokens that are no candidates.
#pragma once

#include <span>

#include "policy/solver/solver.h"

namespace winnow {

// y = Σ α_j u_j [D], r = q − y [D] and <r, u_j> [M] of `weights` [M], into `scratch`.
void EvaluateWeights(const HullProblem& problem, std::span<const double> weights,
                     SolverScratch& scratch);

// r = q − y and <r, u_j> of the y that is in `scratch`.
void EvaluateReadout(const HullProblem& problem, SolverScratch& scratch);

// h − <r, y> = Σ α_j·(max_i s_i − s_j), where s_j = <r, u_j> [M]. Never negative; NaN if a score
// is.
double FrankWolfeGap(std::span<const double> scores, std::span<const double> weights);

// G = ε·KL(α ‖ softmax(s/ε)), ε > 0, the duality gap of f_ε, from log α [M] (-inf is a zero weight)
// and s [M]. Rounding below zero is cut off; NaN if an input is.
double EntropicGap(std::span<const double> scores, std::span<const double> log_weights, double eps);

// ‖y_t − y*‖ of the Euclidean projection: √g. (½‖y_t − y*‖² <= f − f* alone would give √(2g);
// g >= <q − y_t, y* − y_t> >= ‖y_t − y*‖² is sharper.)
double FrankWolfeDistanceBound(double gap);

// ‖y_t − y_ε‖ of the entropic projection: √(2G).
double EntropicDistanceBound(double gap);

// The same for values read out with the weights, from their radius rad(V): rad(V)·√(2G/ε).
double EntropicValueBound(double gap, double eps, double value_radius);

// ρ = max_j ‖u_j − mean u‖ of atoms [M, D], M >= 1.
double MeanRadius(TensorView<const double, 2> atoms);

// log Σ exp(x_j) without overflow; -inf for none or all -inf.
double LogSumExp(std::span<const double> x);

}  // namespace winnow
