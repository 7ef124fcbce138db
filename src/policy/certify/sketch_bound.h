// Intervals of masses from sketched scores: the sketch k̂ of a key is off by at most half a step per
// channel, so its score is off by at most
//   |q·(k − k̂)| <= min(‖q‖·‖k − k̂‖, Σ_c |q_c|·step_c/2).
#pragma once

#include <limits>
#include <span>

#include "policy/certify/mgf_bounds.h"
#include "policy/certify/statement.h"

namespace winnow {

// An upper bound of |q·(k − k̂)| for the tokens of a page. q [D], scaled; steps [D] the sketch's
// spacing by channel as stored, where every key lies within half a step of its k̂ (the grid covers
// the keys: minimum rounded down, step rounded up); residual_norm >= ‖k − k̂‖, +inf if not kept.
// NaN if an input is, or for a negative or infinite step without a residual norm.
double SketchScoreError(std::span<const double> q, std::span<const double> steps,
                        double residual_norm = std::numeric_limits<double>::infinity());

// log Σ e^{q·k} over tokens with sketched scores q·k̂ [n] that are each off by at most
// `score_error` >= 0, rounding of the kernel that computed them included. Also of one token.
// Deterministic; not finite if a score or the error is NaN or infinite; (-inf, -inf) for n = 0.
LogInterval BoundSketchedMass(std::span<const double> scores, double score_error);
// The same with an error for each token [n].
LogInterval BoundSketchedMass(std::span<const double> scores, std::span<const double> score_errors);

// Upper bound of the distance between a page's attention output and the one with sketched scores
// and sketched values: 2·tanh(score_error/2)·value_radius + value_sketch_error, where value_radius
// bounds ‖v − v̄‖ over the page and value_sketch_error ‖v − v̂‖ for each token.
double SketchValueError(double score_error, double value_radius, double value_sketch_error);

}  // namespace winnow
