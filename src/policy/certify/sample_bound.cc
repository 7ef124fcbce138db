#include "policy/certify/sample_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// (e^s − e^z)/(e^{hi} − e^{lo}) without overflow or cancellation.
double Relative(const SampleStratum& stratum, double s, double z) {
  const double hi = stratum.logit_hi;
  return (std::expm1(s - hi) - std::expm1(z - hi)) / -std::expm1(stratum.logit_lo - hi);
}

double TokenEstimate(const SampleStratum& stratum) {
  return stratum.log_estimate - std::log(static_cast<double>(stratum.n));
}

// z with P(|N(0, 1)| > z) = delta, by bisection.
double NormalQuantile(double delta) {
  double lo = 0;
  double hi = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (lo + hi) / 2;
    (std::erfc(middle / std::sqrt(2.0)) > delta ? lo : hi) = middle;
  }
  return hi;
}

}  // namespace

SampleStratum StratumOf(const LogitShape& shape, double log_estimate, double logit_error) {
  const double error = shape.centre_error + logit_error;
  return {shape.n, shape.centre - shape.below - error, shape.centre + shape.above + error,
          log_estimate, BoundLogMass(shape)};
}

SamplePlan::SamplePlan(std::span<const SampleStratum> strata)
    : strata_(strata.begin(), strata.end()), cumulative_(strata.size()) {
  log_scale_ = -kInfinity;
  for (SampleStratum& stratum : strata_) {
    const double log_n = std::log(static_cast<double>(stratum.n));
    finite_ = finite_ && stratum.n >= 1 && std::isfinite(stratum.logit_lo) &&
              std::isfinite(stratum.logit_hi) && stratum.logit_lo <= stratum.logit_hi &&
              !std::isnan(stratum.log_estimate) &&
              stratum.log_mass.statement.standing != Standing::kNotFinite;
    if (!finite_) return;
    stratum.log_estimate =
        std::clamp(stratum.log_estimate, log_n + stratum.logit_lo, log_n + stratum.logit_hi);
    log_scale_ = std::max(log_scale_, log_n + stratum.logit_hi);
  }
  double least = 0;
  double most = 0;
  for (size_t p = 0; p < strata_.size(); ++p) {
    const SampleStratum& stratum = strata_[p];
    const double top =
        std::exp(std::log(static_cast<double>(stratum.n)) + stratum.logit_hi - log_scale_);
    const double width = top * -std::expm1(stratum.logit_lo - stratum.logit_hi);
    width_ += width;
    cumulative_[p] = width_;
    estimate_ += std::exp(stratum.log_estimate - log_scale_);
    if (width <= 0) continue;
    least = std::min(least, Relative(stratum, stratum.logit_lo, TokenEstimate(stratum)));
    most = std::max(most, Relative(stratum, stratum.logit_hi, TokenEstimate(stratum)));
  }
  range_ = most - least;
}

SampleDraw SamplePlan::Draw(Rng& rng) const {
  WINNOW_CHECK(NeedsSample(), "nothing to sample");
  const double at = rng.Uniform() * width_;
  const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
  // Rounding of the product can reach the end; equal sums are strata of no width.
  const auto last = std::lower_bound(cumulative_.begin(), cumulative_.end(), width_);
  const int64_t stratum = std::min(found, last) - cumulative_.begin();
  return {stratum, static_cast<int64_t>(rng.Below(strata_[stratum].n))};
}

SamplePlan::Moments SamplePlan::MomentsOf(std::span<const SampleDraw> draws,
                                          std::span<const double> logits) const {
  WINNOW_CHECK(draws.size() == logits.size(), "{} draws, {} logits", draws.size(), logits.size());
  // Of kernels in float32; the range may come from double.
  constexpr double kOutside = 1e-5;
  Moments moments;
  double squares = 0;
  for (size_t i = 0; i < draws.size(); ++i) {
    const SampleStratum& stratum = strata_[draws[i].stratum];
    const double slack = kOutside * (1 + std::abs(logits[i]));
    if (!std::isfinite(logits[i]) || logits[i] < stratum.logit_lo - slack ||
        logits[i] > stratum.logit_hi + slack) {
      moments.finite = false;
      return moments;
    }
    const double s = std::clamp(logits[i], stratum.logit_lo, stratum.logit_hi);
    const double x = Relative(stratum, s, TokenEstimate(stratum));
    const double before = x - moments.mean;
    moments.mean += before / static_cast<double>(i + 1);
    squares += before * (x - moments.mean);
  }
  if (draws.size() >= 2) moments.variance = squares / static_cast<double>(draws.size() - 1);
  return moments;
}

LogInterval SamplePlan::Certain() const {
  double lo = 0;
  double hi = 0;
  for (const SampleStratum& stratum : strata_) {
    lo += std::exp(stratum.log_mass.lo - log_scale_);
    hi += std::exp(stratum.log_mass.hi - log_scale_);
  }
  const double slack = 1e-14 * static_cast<double>(strata_.size() + 8);
  return {std::log(lo) + log_scale_ - slack,
          std::log(hi) + log_scale_ + slack,
          {StatementKind::kDeterministic}};
}

SampledMass SamplePlan::Finish(const Moments& moments, double half, StatementKind kind,
                               double delta) const {
  SampledMass mass{{-kInfinity, kInfinity, {kind, Standing::kInformative, delta}},
                   std::numeric_limits<double>::quiet_NaN()};
  if (!finite_ || !moments.finite) {
    mass.log_mass.statement.standing = Standing::kNotFinite;
    return mass;
  }
  if (strata_.empty()) return {{-kInfinity, -kInfinity, {StatementKind::kExact}}, -kInfinity};
  const LogInterval certain = Certain();
  const double centre = estimate_ + width_ * moments.mean;
  const double lo = centre - width_ * half;
  const double log_lo = lo > 0 ? std::log(lo) + log_scale_ : -kInfinity;
  const double log_hi = std::log(std::max(0.0, centre + width_ * half)) + log_scale_;
  mass.log_mass.lo = std::max(log_lo, certain.lo);
  mass.log_mass.hi = std::min(log_hi, certain.hi);
  // With probability delta the two may miss each other.
  if (!NeedsSample() || mass.log_mass.lo > mass.log_mass.hi ||
      (log_lo <= certain.lo && log_hi >= certain.hi)) {
    mass.log_mass = certain;
  }
  if (!(mass.log_mass.hi < kInfinity)) mass.log_mass.statement.standing = Standing::kVacuous;
  mass.log_estimate = std::clamp(centre > 0 ? std::log(centre) + log_scale_ : -kInfinity,
                                 mass.log_mass.lo, mass.log_mass.hi);
  return mass;
}

SampledMass SamplePlan::Bound(std::span<const SampleDraw> draws, std::span<const double> logits,
                              double delta) const {
  WINNOW_CHECK(delta > 0 && delta < 1, "delta {}", delta);
  const Moments moments = MomentsOf(draws, logits);
  const auto m = static_cast<double>(draws.size());
  double half = 0;
  if (NeedsSample()) {
    const double log_term = std::log(4 / delta);
    half = m < 2 ? kInfinity
                 : std::sqrt(2 * moments.variance * log_term / m) +
                       7 * range_ * log_term / (3 * (m - 1));
  }
  return Finish(moments, half, StatementKind::kStatistical, delta);
}

SampledMass SamplePlan::Asymptotic(std::span<const SampleDraw> draws,
                                   std::span<const double> logits, double delta) const {
  WINNOW_CHECK(delta > 0 && delta < 1, "delta {}", delta);
  const Moments moments = MomentsOf(draws, logits);
  const auto m = static_cast<double>(draws.size());
  double half = 0;
  if (NeedsSample()) {
    half = m < 2 ? kInfinity : NormalQuantile(delta) * std::sqrt(moments.variance / m);
  }
  return Finish(moments, half, StatementKind::kAsymptotic, delta);
}

}  // namespace winnow
