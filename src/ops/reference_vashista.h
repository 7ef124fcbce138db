// Plain double oracles of sparse decode that only tests, fixtures and `winnow diagnose` need.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow::reference {

struct EntropicSolution {
  std::vector<double> weights;      // α_ε [M]
  std::vector<double> log_weights;  // log α_ε [M], finite also where a weight underflows
  std::vector<double> readout;      // y_ε [D]
  std::vector<double> residual;     // r_ε = q − y_ε [D]
  double objective = 0;             // ½‖y_ε − q‖² + ε·Σ α log α
  double readout_error = 0;         // a bound of ‖r − r_ε‖ from the dual's strong convexity
};

// argmin over the simplex of ½‖Σ α_j u_j − q‖² + ε·Σ α_j log α_j (Vashista 5); atoms [M, D], M >=
// 1, q [D], ε > 0, all finite. Damped Newton on the dual ½‖r‖² − <q, r> + ε·log Σ exp(<u_j, r>/ε),
// whose Hessian is at least 1, with ε lowered in steps.
EntropicSolution SolveEntropic(TensorView<const double, 2> atoms, std::span<const double> q,
                               double eps);

// The one-dimensional problem with atoms 0 and 1: weight of the atom 1 (Vashista D.1, corrected).
struct TwoAtomSolution {
  double projection = 0;  // α*, q cut off at [0, 1]
  double entropic = 0;    // α_ε
  double gap = 0;         // support gap Δ; +inf for 0 < q < 1
};
TwoAtomSolution SolveTwoAtoms(double q, double eps);

// max over a page's box and ball of <r, k>, an upper bound for its keys [n, D], n >= 1.
double PageScoreBound(TensorView<const double, 2> page_keys, std::span<const double> residual);

struct GlobalGap {
  std::vector<double> readout;     // projection of q onto the hull of the visited page
  std::vector<double> page_upper;  // PageScoreBound of the other pages, in order
  double gap = 0;       // bound of the Frank-Wolfe gap over all keys; ‖y − y*‖ <= √gap
  double distance = 0;  // the true ‖y − y*‖, y* the projection onto the hull of all keys
};
// keys [T, D] in pages of `page_tokens` (the last may be short).
GlobalGap GlobalFrankWolfeGap(TensorView<const double, 2> keys, std::span<const double> q,
                              int64_t page_tokens, int64_t visited_page);

}  // namespace winnow::reference
