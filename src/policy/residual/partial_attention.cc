#include "policy/residual/partial_attention.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

PartialAttention NotANumber(size_t value_dim) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  return {std::vector<double>(value_dim, kNaN), kNaN};
}

}  // namespace

PartialAttention NoAttention(int64_t value_dim) {
  return {std::vector<double>(value_dim, 0.0), -kInfinity};
}

PartialAttention MixRows(std::span<const double> log_weights, TensorView<const double, 2> values,
                         std::span<const int64_t> rows) {
  WINNOW_CHECK(log_weights.size() == rows.size(), "{} weights for {} rows", log_weights.size(),
               rows.size());
  double max = -kInfinity;
  for (double weight : log_weights) {
    if (std::isnan(weight) || weight == kInfinity) return NotANumber(values.shape[1]);
    max = std::max(max, weight);
  }
  PartialAttention state = NoAttention(values.shape[1]);
  if (max == -kInfinity) return state;
  double sum = 0;
  for (size_t j = 0; j < rows.size(); ++j) {
    if (log_weights[j] == -kInfinity) continue;
    const double mass = std::exp(log_weights[j] - max);
    const double* value = values.row(rows[j]);
    for (size_t c = 0; c < state.out.size(); ++c) state.out[c] += mass * value[c];
    sum += mass;
  }
  for (double& x : state.out) x /= sum;
  state.log_mass = max + std::log(sum);
  return state;
}

std::vector<double> RowScores(std::span<const double> scaled_query,
                              TensorView<const double, 2> keys, std::span<const int64_t> rows) {
  WINNOW_CHECK(keys.shape[1] == std::ssize(scaled_query), "keys of {} and a query of {}",
               keys.shape[1], scaled_query.size());
  std::vector<double> scores;
  scores.reserve(rows.size());
  for (int64_t row : rows) {
    const double* key = keys.row(row);
    double sum = 0;
    for (size_t c = 0; c < scaled_query.size(); ++c) sum += scaled_query[c] * key[c];
    scores.push_back(sum);
  }
  return scores;
}

PartialAttention AttendRows(std::span<const double> scaled_query, TensorView<const double, 2> keys,
                            TensorView<const double, 2> values, std::span<const int64_t> rows) {
  return MixRows(RowScores(scaled_query, keys, rows), values, rows);
}

void Merge(PartialAttention& state, const PartialAttention& other) {
  WINNOW_CHECK(state.out.size() == other.out.size(), "values of {} and {}", state.out.size(),
               other.out.size());
  const double max = std::max(state.log_mass, other.log_mass);
  if (std::isnan(state.log_mass) || std::isnan(other.log_mass) || max == kInfinity) {
    state = NotANumber(state.out.size());
    return;
  }
  if (other.log_mass == -kInfinity) return;
  if (state.log_mass == -kInfinity) {
    state = other;
    return;
  }
  const double mass = std::exp(state.log_mass - max);
  const double other_mass = std::exp(other.log_mass - max);
  const double total = mass + other_mass;
  for (size_t c = 0; c < state.out.size(); ++c) {
    state.out[c] = (mass * state.out[c] + other_mass * other.out[c]) / total;
  }
  state.log_mass = max + std::log(total);
}

PartialAttention Subtract(const PartialAttention& whole, const PartialAttention& part,
                          double relative_guard) {
  WINNOW_CHECK(whole.out.size() == part.out.size() && relative_guard >= 0, "values of {} and {}",
               whole.out.size(), part.out.size());
  if (std::isnan(whole.log_mass) || std::isnan(part.log_mass) || whole.log_mass == kInfinity) {
    return NotANumber(whole.out.size());
  }
  if (part.log_mass == -kInfinity) return whole;
  const double share = std::exp(part.log_mass - whole.log_mass);
  const double left = -std::expm1(part.log_mass - whole.log_mass);
  if (left <= relative_guard) return NoAttention(std::ssize(whole.out));
  PartialAttention rest = whole;
  for (size_t c = 0; c < rest.out.size(); ++c) {
    rest.out[c] = (whole.out[c] - share * part.out[c]) / left;
  }
  rest.log_mass = whole.log_mass + std::log(left);
  return rest;
}

CompletedAttention Complete(const PartialAttention& exact, const PartialAttention& estimate) {
  CompletedAttention result{exact};
  Merge(result.state, estimate);
  if (result.state.log_mass != -kInfinity) {
    result.residual_share = std::exp(estimate.log_mass - result.state.log_mass);
  }
  return result;
}

}  // namespace winnow
