#include "policy/certify/mgf_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
// Relative inflation of figures that come out of a few hundred roundings of their own size, such as
// a radius or an eigenvalue of a page of 128 × 128.
constexpr double kInflate = 1 + 1e-12;

double Square(double x) { return x * x; }

// log((1 − p)·e^s + p·e^t), p in [0, 1], with (1 − p) given; exact near s = t = 0.
double LogMix(double one_minus_p, double s, double p, double t) {
  if (std::abs(s) < 1 && std::abs(t) < 1) {
    return std::log1p(one_minus_p * std::expm1(s) + p * std::expm1(t));
  }
  const double top = std::max(s, t);
  return top + std::log(one_minus_p * std::exp(s - top) + p * std::exp(t - top));
}

// 0·inf is 0: a factor of zero means that the logits do not vary.
double Product(double x, double y) { return x == 0 || y == 0 ? 0 : x * y; }

struct Sums {
  double centre = 0;
  double magnitude = 0;  // Σ |q_c|·max|box_c| >= |q·k| for every key, term by term
  double mean_error = 0;
  double box_below = 0, box_above = 0;
  double norm_squared = 0;
  double deviation = 0;        // Σ |q_c|·σ_c, upper
  double largest_channel = 0;  // max |q_c|·(σ_c lower + upper)
  bool finite = true;
};

Sums SumOverChannels(std::span<const double> q, const PageSummaryView& page) {
  Sums sums;
  double probe = 0;
  for (size_t c = 0; c < q.size(); ++c) {
    const double weight = std::abs(q[c]);
    const double to_lo = q[c] * (page.box_lo[c] - page.mean[c]);
    const double to_hi = q[c] * (page.box_hi[c] - page.mean[c]);
    const double error = page.mean_error.empty() ? 0 : page.mean_error[c];
    sums.centre += q[c] * page.mean[c];
    sums.magnitude += weight * std::max(std::abs(page.box_lo[c]), std::abs(page.box_hi[c]));
    sums.mean_error += weight * error;
    sums.box_below -= std::min({to_lo, to_hi, 0.0});
    sums.box_above += std::max({to_lo, to_hi, 0.0});
    sums.norm_squared += Square(q[c]);
    sums.deviation += Product(weight, page.deviation_hi[c]);
    sums.largest_channel = std::max(sums.largest_channel,
                                    Product(weight, page.deviation_lo[c] + page.deviation_hi[c]));
    // max and min lose NaN; products with zero keep it, and find infinities.
    probe += 0 * (q[c] + page.mean[c] + page.box_lo[c] + page.box_hi[c] + error);
    // Infinite deviations are figures that are not kept.
    if (std::isnan(page.deviation_lo[c]) || std::isnan(page.deviation_hi[c])) sums.finite = false;
    if (!(page.box_lo[c] <= page.box_hi[c])) sums.finite = false;
  }
  sums.finite = sums.finite && !std::isnan(probe) && !std::isnan(page.radius) &&
                !std::isnan(page.largest_variance) && std::isfinite(sums.centre) &&
                std::isfinite(sums.mean_error) && std::isfinite(sums.norm_squared);
  return sums;
}

// Lower bound of the deviation of x: the most deviant channel less all others.
double LeastDeviation(const Sums& sums, double slack) {
  const double least = sums.largest_channel / kInflate - sums.deviation * kInflate - 2 * slack;
  return std::isfinite(least) ? std::max(0.0, least) : 0;
}

}  // namespace

LogInterval LogInterval::Empty() {
  return {-kInfinity, -kInfinity, {StatementKind::kDeterministic}};
}

void LogInterval::Add(const LogInterval& other) {
  constexpr double kSlack = 4 * kEpsilon;
  const auto sum = [](double x, double y, double direction) {
    const double top = std::max(x, y);
    if (std::isinf(top)) return top;
    const double log = top + std::log1p(std::exp(std::min(x, y) - top));
    return log + direction * kSlack * (1 + std::abs(log));
  };
  statement = Both(statement, other.statement);
  if (statement.standing == Standing::kNotFinite) {
    lo = -kInfinity;
    hi = kInfinity;
    return;
  }
  lo = sum(lo, other.lo, -1);
  hi = sum(hi, other.hi, +1);
}

double LogMgfUpper(double b, double v) {
  if (std::isnan(b) || std::isnan(v)) return b + v;
  if (b <= 0 || v <= 0) return 0;
  if (!std::isfinite(b) || !std::isfinite(v)) return kInfinity;
  const double t = v / b;
  if (!std::isfinite(t)) return b;
  return std::max(0.0, LogMix(b / (b + t), -t, t / (b + t), b));
}

double LogMgfLower(double a, double v) {
  if (std::isnan(a) || std::isnan(v)) return a + v;
  if (a <= 0 || v <= 0 || !std::isfinite(a) || !std::isfinite(v / a)) return 0;
  const double t = v / a;
  return std::max(0.0, LogMix(a / (a + t), t, t / (a + t), -a));
}

LogitShape ShapeOfLogits(std::span<const double> q, const PageSummaryView& page) {
  WINNOW_CHECK(page.n >= 1 && q.size() == page.mean.size() && q.size() == page.box_lo.size() &&
                   q.size() == page.box_hi.size() && q.size() == page.deviation_lo.size() &&
                   q.size() == page.deviation_hi.size() &&
                   (page.mean_error.empty() || q.size() == page.mean_error.size()),
               "{} channels of q, {} of the page", q.size(), page.mean.size());
  const Sums sums = SumOverChannels(q, page);
  LogitShape shape;
  shape.n = page.n;
  shape.centre = sums.centre;
  shape.finite = sums.finite;
  if (!shape.finite) return shape;

  // A sum of D products and a mean of n keys, each rounded: at most (D + n + few) half units of the
  // sum of magnitudes.
  const double rounding =
      (static_cast<double>(q.size()) + static_cast<double>(page.n) + 8) * kEpsilon * sums.magnitude;
  shape.centre_error = sums.mean_error + rounding;
  shape.reach = Product(std::sqrt(sums.norm_squared), page.radius) * kInflate;
  shape.box_below = sums.box_below * kInflate;
  shape.box_above = sums.box_above * kInflate;
  shape.below = std::min(shape.reach, shape.box_below) + shape.centre_error;
  shape.above = std::min(shape.reach, shape.box_above) + shape.centre_error;

  shape.variance_hi = std::min(
      {Product(shape.below, shape.above) * kInflate, Square(sums.deviation * kInflate + rounding),
       Product(sums.norm_squared, page.largest_variance) * kInflate + Square(rounding)});
  // No value is further from the mean of n than √(n − 1) deviations (Samuelson).
  const double furthest = std::sqrt(Product(static_cast<double>(page.n - 1), shape.variance_hi));
  shape.below = std::min(shape.below, furthest * kInflate);
  shape.above = std::min(shape.above, furthest * kInflate);
  shape.variance_hi = std::min(shape.variance_hi, Product(shape.below, shape.above) * kInflate);
  shape.variance_lo = Square(LeastDeviation(sums, rounding));
  return shape;
}

LogInterval BoundLogMass(const LogitShape& shape, MassBound method) {
  LogInterval interval{-kInfinity, kInfinity, {StatementKind::kDeterministic}};
  if (!shape.finite) {
    interval.statement.standing = Standing::kNotFinite;
    return interval;
  }
  double lo = 0;
  double hi = 0;
  switch (method) {
    case MassBound::kRange:
      lo = -shape.reach;
      hi = shape.reach;
      break;
    case MassBound::kBox:
      lo = -shape.box_below;
      hi = shape.box_above;
      break;
    case MassBound::kJensenRadius:
      hi = LogMgfUpper(shape.reach, Product(shape.reach, shape.reach));
      break;
    case MassBound::kBest:
      lo = LogMgfLower(shape.below, shape.variance_lo);
      hi = LogMgfUpper(shape.above, shape.variance_hi);
      break;
  }
  const double base = std::log(static_cast<double>(shape.n)) + shape.centre;
  const double spread = std::isfinite(hi) ? std::abs(lo) + std::abs(hi) : 0;
  const double slack = shape.centre_error + 16 * kEpsilon * (1 + std::abs(base) + spread);
  interval.lo = base + lo - slack;
  interval.hi = base + hi + slack;
  if (!(interval.hi < kInfinity)) interval.statement.standing = Standing::kVacuous;
  return interval;
}

double CumulantLogMass(std::span<const double> q, const PageSummaryView& page) {
  WINNOW_CHECK(q.size() == page.mean.size() && q.size() == page.deviation_hi.size());
  double centre = 0;
  double variance = 0;
  for (size_t c = 0; c < q.size(); ++c) {
    centre += q[c] * page.mean[c];
    variance += Square(q[c] * page.deviation_hi[c]);
  }
  return std::log(static_cast<double>(page.n)) + centre + variance / 2;
}

WeightSpread SpreadOfWeights(const LogitShape& shape) {
  if (!shape.finite) return {};
  const double width = shape.below + shape.above;
  // χ² of the weights against equal ones is E e^{2x}/(E e^x)² − 1.
  const double by_moments =
      std::expm1(LogMgfUpper(2 * shape.above, 4 * shape.variance_hi) -
                 2 * LogMgfLower(shape.below, shape.variance_lo) + 16 * kEpsilon * (1 + width));
  const double chi_squared = std::min(Square(std::sinh(width / 2)), std::max(0.0, by_moments));
  // The total variation between softmax weights of logits within `width` and equal ones, twice.
  return {2 * std::tanh(width / 4) * kInflate, std::sqrt(chi_squared) * kInflate};
}

WeightSpread SpreadOfWeights(int64_t n, double largest) {
  const auto count = static_cast<double>(n);
  const double over_equal = std::clamp(count * largest, 1.0, count) * kInflate;
  if (std::isnan(largest)) return {};
  // What lies above 1/n is at most that of 1/largest tokens; Σ p_i² <= largest·Σ p_i.
  return {2 * (1 - 1 / over_equal), std::sqrt(over_equal - 1)};
}

double BoundValueError(const WeightSpread& weights, const PageSummaryView& page) {
  if (std::isnan(page.value_radius) || std::isnan(page.value_deviation)) return kInfinity;
  const double by_range = Product(std::min(1.0, weights.variation), page.value_radius) * kInflate;
  const double by_chi = Product(page.value_deviation, weights.chi) * kInflate;
  return std::min(by_range, by_chi) + page.value_mean_error;
}

double BoundValueError(const LogitShape& shape, const PageSummaryView& page) {
  return shape.finite ? BoundValueError(SpreadOfWeights(shape), page) : kInfinity;
}

}  // namespace winnow
