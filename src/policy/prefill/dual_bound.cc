#include "policy/prefill/dual_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

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

// Chunks by falling tokens per mass of `row`: in which a knapsack of capacity ε is filled. Ties by
// index.
void OrderForRow(const ScreeningProblem& problem, const ConstraintRow& row,
                 std::vector<std::pair<double, int32_t>>& order) {
  order.resize(problem.chunk_tokens.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = {-static_cast<double>(problem.chunk_tokens[i]) / row.mass[i], static_cast<int>(i)};
  }
  std::sort(order.begin(), order.end());
}

// The price at which U of `row` alone is least: tokens per mass of the chunk at which the knapsack
// is full.
double BestRowPrice(const ConstraintRow& row,
                    const std::vector<std::pair<double, int32_t>>& order) {
  double mass = 0;
  for (const auto& [negative_ratio, chunk] : order) {
    mass += row.mass[chunk];
    if (mass > row.eps) return -negative_ratio;
  }
  return 0;
}

// Whether the knapsack of `row`, filled in whichever order, holds `tokens`: then no price on it
// bounds the saving below that.
bool Holds(const ScreeningProblem& problem, const ConstraintRow& row,
           const std::vector<std::pair<double, int32_t>>& order, double tokens) {
  double capacity = row.eps;
  double held = 0;
  for (const auto& entry : order) {
    const int32_t chunk = entry.second;
    const auto n = static_cast<double>(problem.chunk_tokens[chunk]);
    if (row.mass[chunk] > capacity) return held + n * (capacity / row.mass[chunk]) >= tokens;
    capacity -= row.mass[chunk];
    held += n;
    if (held >= tokens) return true;
  }
  return held >= tokens;
}

// Rows that a price may help, the tightest first: so that few of the others have to be ordered.
std::vector<int64_t> RowsByTightness(const ScreeningProblem& problem) {
  std::vector<std::pair<double, int64_t>> tightness;
  for (size_t a = 0; a < problem.rows.size(); ++a) {
    const ConstraintRow& row = problem.rows[a];
    const double total = std::accumulate(row.mass, row.mass + problem.chunk_tokens.size(), 0.0);
    if (std::isfinite(total) && total > row.eps) {
      tightness.emplace_back(row.eps / total, static_cast<int64_t>(a));
    }
  }
  std::sort(tightness.begin(), tightness.end());
  std::vector<int64_t> rows;
  rows.reserve(tightness.size());
  for (const auto& entry : tightness) rows.push_back(entry.second);
  return rows;
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
  std::vector<std::pair<double, int32_t>> order;       // of the row at hand
  std::vector<std::pair<double, int32_t>> last_order;  // of the row that was ordered last
  for (const int64_t a : RowsByTightness(problem)) {
    const ConstraintRow& row = problem.rows[a];
    if (!last_order.empty() && Holds(problem, row, last_order, best.tokens)) continue;
    OrderForRow(problem, row, order);
    const double price = BestRowPrice(row, order);
    const double bound = EvaluateRow(problem, row, price);
    std::swap(order, last_order);
    if (bound < best.tokens) {
      best = {.tokens = bound, .row_price = {}, .price_row = a, .price = price};
    }
  }
  return best;
}

}  // namespace winnow
