// The drop-in operator of a trained model over the candidates: plain softmax weights.
#pragma once

#include <span>

#include "policy/solver/solver.h"

namespace winnow {

// weights [M] = softmax(scores/eps); scores [M] are scaled logits, eps > 0 a temperature (1: the
// model's own attention). Exact: gap 0, no iterations. A score of -inf gets weight 0; NaN, +inf or
// nothing but -inf is kNotFinite.
SolverResult SoftmaxWeights(std::span<const double> scores, double eps, std::span<double> weights);

}  // namespace winnow
