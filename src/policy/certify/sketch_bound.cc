#include "policy/certify/sketch_bound.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kInflate = 1 + 1e-12;  // of sums of a few hundred terms

struct LogSum {
  double value = -kInfinity;
  bool finite = true;
};

// log Σ exp(scores + sign·error), and whether all was finite.
template <typename ErrorOf>
LogSum SumExp(std::span<const double> scores, double sign, const ErrorOf& error_of) {
  LogSum sum;
  double top = -kInfinity;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double x = scores[i] + sign * error_of(i);
    if (!std::isfinite(x) || !(error_of(i) >= 0)) sum.finite = false;
    top = std::max(top, x);
  }
  if (!sum.finite || scores.empty()) return sum;
  double total = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    total += std::exp(scores[i] + sign * error_of(i) - top);
  }
  sum.value = top + std::log(total);
  return sum;
}

template <typename ErrorOf>
LogInterval Interval(std::span<const double> scores, const ErrorOf& error_of) {
  const LogSum lo = SumExp(scores, -1, error_of);
  const LogSum hi = SumExp(scores, +1, error_of);
  LogInterval interval{-kInfinity, kInfinity, {StatementKind::kDeterministic}};
  if (!lo.finite || !hi.finite) {
    interval.statement.standing = Standing::kNotFinite;
    return interval;
  }
  const auto n = static_cast<double>(scores.size());
  interval.lo = lo.value;
  interval.hi = hi.value;
  if (scores.empty()) return interval;
  interval.lo -= (n + 8) * kEpsilon * (1 + std::abs(lo.value));
  interval.hi += (n + 8) * kEpsilon * (1 + std::abs(hi.value));
  return interval;
}

}  // namespace

double SketchScoreError(std::span<const double> q, std::span<const double> steps,
                        double residual_norm) {
  WINNOW_CHECK(q.size() == steps.size(), "{} channels of q, {} steps", q.size(), steps.size());
  double norm = 0;
  double by_steps = 0;
  for (size_t c = 0; c < q.size(); ++c) {
    if (!(steps[c] >= 0)) return std::numeric_limits<double>::quiet_NaN();
    norm += q[c] * q[c];
    by_steps += std::abs(q[c]) * steps[c] / 2;
  }
  if (std::isnan(by_steps) || std::isnan(norm) || std::isnan(residual_norm)) {
    return by_steps + norm + residual_norm;
  }
  // A residual of zero is exact whatever the query's norm.
  const double by_norm = residual_norm == 0 || norm == 0 ? 0 : std::sqrt(norm) * residual_norm;
  return std::min(by_norm, by_steps) * kInflate;
}

LogInterval BoundSketchedMass(std::span<const double> scores, double score_error) {
  return Interval(scores, [score_error](size_t) { return score_error; });
}

LogInterval BoundSketchedMass(std::span<const double> scores,
                              std::span<const double> score_errors) {
  WINNOW_CHECK(scores.size() == score_errors.size(), "{} scores, {} errors", scores.size(),
               score_errors.size());
  return Interval(scores, [score_errors](size_t i) { return score_errors[i]; });
}

double SketchValueError(double score_error, double value_radius, double value_sketch_error) {
  // Weights whose logits are off by ±e are off by a total variation of at most tanh(e/2).
  const double moved = value_radius == 0 ? 0 : 2 * std::tanh(score_error / 2) * value_radius;
  return moved * kInflate + value_sketch_error;
}

}  // namespace winnow
