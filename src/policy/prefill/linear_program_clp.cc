// Prices from the linear relaxation of (14), by COIN-OR's CLP: the only file that sees it.
#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <algorithm>
#include <cmath>

#include "policy/prefill/dual_bound.h"

namespace winnow {

DualBound BoundByLinearProgram(const ScreeningProblem& problem) {
  DualBound best = BoundBySinglePrices(problem);
  const int n_chunks = static_cast<int>(problem.chunk_tokens.size());
  const int n_rows = static_cast<int>(problem.rows.size());
  for (const ConstraintRow& row : problem.rows) {
    if (!std::all_of(row.mass, row.mass + n_chunks, [](double m) { return std::isfinite(m); })) {
      return best;
    }
  }
  // Least −Σ n_i x_i over 0 <= x <= 1: rows of (14), then the count. Columns first in memory.
  std::vector<double> elements(static_cast<size_t>(n_chunks) * (n_rows + 1));
  std::vector<double> cost(n_chunks);
  for (int i = 0; i < n_chunks; ++i) {
    double* column = elements.data() + static_cast<size_t>(i) * (n_rows + 1);
    for (int a = 0; a < n_rows; ++a) column[a] = problem.rows[a].mass[i];
    column[n_rows] = 1;
    cost[i] = -static_cast<double>(problem.chunk_tokens[i]);
  }
  std::vector<double> upper(n_rows + 1);
  for (int a = 0; a < n_rows; ++a) upper[a] = problem.rows[a].eps;
  upper[n_rows] = static_cast<double>(n_chunks - problem.min_chunks);
  const std::vector<double> lower(n_rows + 1, -COIN_DBL_MAX);
  const std::vector<double> zeros(n_chunks, 0);
  const std::vector<double> ones(n_chunks, 1);

  CoinPackedMatrix matrix;
  matrix.setDimensions(n_rows + 1, 0);
  std::vector<int> indices(n_rows + 1);
  for (int a = 0; a <= n_rows; ++a) indices[a] = a;
  for (int i = 0; i < n_chunks; ++i) {
    matrix.appendCol(n_rows + 1, indices.data(),
                     elements.data() + static_cast<size_t>(i) * (n_rows + 1));
  }
  ClpSimplex simplex;
  simplex.setLogLevel(0);
  // Prices that are off by CLP's own 1e-7 cost that share of a bound in tokens.
  simplex.setDualTolerance(1e-9);
  simplex.setPrimalTolerance(1e-9);
  simplex.loadProblem(matrix, zeros.data(), ones.data(), cost.data(), lower.data(), upper.data());
  if (simplex.dual() != 0) return best;

  const double* duals = simplex.dualRowSolution();
  std::vector<double> prices(n_rows);
  for (int a = 0; a < n_rows; ++a) {
    if (!std::isfinite(duals[a])) return best;
    prices[a] = std::max(0.0, -duals[a]);
  }
  const double count_price = std::max(0.0, -duals[n_rows]);
  const double bound = EvaluatePrices(problem, prices, count_price);
  if (bound < best.tokens) {
    best = {.tokens = bound, .row_price = std::move(prices), .count_price = count_price};
  }
  return best;
}

}  // namespace winnow
