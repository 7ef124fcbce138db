#include "policy/prefill/dual_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/check.h"

namespace winnow {
namespace {

// U of (15) where only `row` has a price.
double EvaluateRow(const ScreeningProblem& problem, const ConstraintRow& row, double price) {
  double bound = price * row.eps;
  for (size_t i = 0; i < problem.chunk_tokens.size(); ++i) {
    bound += std::max(0.0, static_cast<double>(problem.chunk_tokens[i]) - price * row.mass[i]);
  }
  return bound;
}

// The price at which U of `row` alone is least: tokens per mass of the chunk at which a knapsack
// of capacity ε is full, filled by falling ratio. Found by halving, in linear time.
double BestRowPrice(const ScreeningProblem& problem, const ConstraintRow& row,
                    std::vector<int32_t>& scratch) {
  scratch.resize(problem.chunk_tokens.size());
  std::iota(scratch.begin(), scratch.end(), 0);
  const auto before = [&](int32_t i, int32_t j) {
    return static_cast<double>(problem.chunk_tokens[i]) * row.mass[j] >
           static_cast<double>(problem.chunk_tokens[j]) * row.mass[i];
  };
  auto lo = scratch.begin();
  auto hi = scratch.end();
  double capacity = row.eps;
  while (hi - lo > 1) {
    const auto mid = lo + (hi - lo) / 2;
    std::nth_element(lo, mid, hi, before);
    double mass = 0;
    for (auto it = lo; it != mid; ++it) mass += row.mass[*it];
    if (mass > capacity) {
      hi = mid;
    } else {
      capacity -= mass;
      lo = mid;
    }
  }
  const double mass = row.mass[*lo];
  return mass > 0 ? static_cast<double>(problem.chunk_tokens[*lo]) / mass : 0;
}

double LargestChunks(const ScreeningProblem& problem, int64_t n, double* count_price) {
  std::vector<int64_t> tokens(problem.chunk_tokens.begin(), problem.chunk_tokens.end());
  std::sort(tokens.begin(), tokens.end(), std::greater<>());
  *count_price = n < std::ssize(tokens) ? static_cast<double>(tokens[n]) : 0;
  return static_cast<double>(std::accumulate(tokens.begin(), tokens.begin() + n, int64_t{0}));
}

}  // namespace

int64_t DualBound::WholeTokens() const {
  return static_cast<int64_t>(std::floor(tokens * (1 + 1e-12)));
}

bool DualBound::Excludes(int64_t target) const {
  return tokens < static_cast<double>(target) * (1 - 1e-12);
}

double EvaluatePrices(const ScreeningProblem& problem, std::span<const double> row_price,
                      double count_price) {
  WINNOW_CHECK(row_price.size() == problem.rows.size(), "{} prices of {} rows", row_price.size(),
               problem.rows.size());
  const size_t n_chunks = problem.chunk_tokens.size();
  std::vector<double> reduced(problem.chunk_tokens.begin(), problem.chunk_tokens.end());
  double bound =
      count_price * static_cast<double>(static_cast<int64_t>(n_chunks) - problem.min_chunks);
  for (size_t a = 0; a < row_price.size(); ++a) {
    const double price = row_price[a];
    if (price == 0) continue;
    bound += price * problem.rows[a].eps;
    for (size_t i = 0; i < n_chunks; ++i) reduced[i] -= price * problem.rows[a].mass[i];
  }
  for (const double r : reduced) bound += std::max(0.0, r - count_price);
  return bound;
}

DualBound BoundBySinglePrices(const ScreeningProblem& problem) {
  DualBound best;
  const auto n_chunks = static_cast<int64_t>(problem.chunk_tokens.size());
  const int64_t n_removable = std::max<int64_t>(0, n_chunks - problem.min_chunks);
  best.tokens = LargestChunks(problem, n_removable, &best.count_price);
  std::vector<int32_t> scratch;
  for (size_t a = 0; a < problem.rows.size(); ++a) {
    const ConstraintRow& row = problem.rows[a];
    const double total = std::accumulate(row.mass, row.mass + n_chunks, 0.0);
    if (!std::isfinite(total) || total <= row.eps) continue;  // a price would not help
    const double price = BestRowPrice(problem, row, scratch);
    const double bound = EvaluateRow(problem, row, price);
    if (bound < best.tokens) {
      best = {
          .tokens = bound, .row_price = {}, .price_row = static_cast<int64_t>(a), .price = price};
    }
  }
  return best;
}

}  // namespace winnow
