// What no removal within the tolerances can save more than, by prices on the constraints
// (EntroPrefill (15), (16)).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/prefill/constraint_row.h"

namespace winnow {

struct ScreeningProblem {
  std::span<const int64_t> chunk_tokens;  // [k], n_i
  std::span<const ConstraintRow> rows;
  int64_t min_chunks = 0;  // m0
};

struct DualBound {
  double tokens = 0;              // U_l(y, t)
  std::vector<double> row_price;  // y [rows], or empty where at most one row has one:
  int64_t price_row = -1;         // that row, or -1
  double price = 0;               // and its price
  double count_price = 0;         // t

  // The largest whole number of tokens that U allows; its rounding is in the 1e-12.
  int64_t WholeTokens() const;
  // Whether it proves that `target` tokens cannot be saved.
  bool Excludes(int64_t target) const;
};

// U_l(y, t) of (15) for row prices y >= 0 [rows] and a count price t >= 0. Tokens. Whatever the
// prices are, no feasible removal saves more.
double EvaluatePrices(const ScreeningProblem& problem, std::span<const double> row_price,
                      double count_price);

// The least U with a price on one row, or on the count, or on nothing: for each alone the best
// price is known in closed form (a fractional knapsack). O(rows · k · log k), and for rows like the
// tightest O(k). Rows with a mass that is not finite get no price.
DualBound BoundBySinglePrices(const ScreeningProblem& problem);

// The least U of all: prices from the linear relaxation of (14), clamped to >= 0, and evaluated by
// EvaluatePrices, so that it is a bound whatever the solver did. Falls back on single prices where
// the solver fails. Slow: milliseconds to seconds.
DualBound BoundByLinearProgram(const ScreeningProblem& problem);

}  // namespace winnow
