// What the restricted solvers of sparse decode share: the problem, options, record and scratch
// memory.
//
// A solver is a pure function: it looks for weights α on the simplex over M candidate atoms and
// says how good they are. The entropic projection (`ExponentiatedGradient`) and the Euclidean one
// (`FrankWolfe`) are other operators than attention: their weights are no attention weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

// f(α) = ½‖Σ α_j u_j − q‖², where u_j are the candidate keys and q the unscaled query
// (Vashista 4, 5); f_ε adds ε·Σ α_j log α_j.
struct HullProblem {
  TensorView<const double, 2> atoms;  // [M, D], M >= 1
  std::span<const double> query;      // [D]
};

enum class SolverStatus {
  kConverged,       // the gap is at most the tolerance, or zero up to rounding
  kIterationLimit,  // all iterations done; the gap says how far it came
  kNotFinite,       // NaN or infinity came in or up: the weights are NaN and the gap is infinite
};

struct SolverResult {
  SolverStatus status = SolverStatus::kNotFinite;
  int iterations = 0;         // steps taken
  double gap = 0;             // duality gap of the returned weights, >= 0
  double distance_bound = 0;  // ‖Σ α_j u_j − y‖ is at most this; y is the solver's exact optimum
};

// For tests and diagnostics; a solver that gets one clears it.
struct SolverTrace {
  std::vector<double> gaps;       // before every step and at the end
  std::vector<int64_t> vertices;  // Frank-Wolfe: the atom of every step
};

// Kept between calls so that a solver allocates only when a problem is larger than all before.
struct SolverScratch {
  std::vector<double> readout;      // y = Σ α_j u_j, [D]
  std::vector<double> residual;     // r = q − y, [D]
  std::vector<double> scores;       // <r, u_j>, [M]
  std::vector<double> log_weights;  // [M]
};

}  // namespace winnow
