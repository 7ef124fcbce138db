#include "policy/residual/feature_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

FeatureState::FeatureState(int64_t n_features, int64_t value_dim)
    : value_dim_(value_dim),
      log_max_(n_features, -kInfinity),
      u_(n_features, 0.0),
      s_(n_features * value_dim, 0.0) {}

int64_t FeatureState::bytes() const {
  return static_cast<int64_t>((log_max_.size() + u_.size() + s_.size()) * sizeof(double));
}

void FeatureState::Rescale(int64_t f, double log_max) {
  if (!(log_max > log_max_[f])) return;
  const double factor = std::exp(log_max_[f] - log_max);  // 0 for an empty feature
  u_[f] *= factor;
  for (int64_t c = 0; c < value_dim_; ++c) s_[f * value_dim_ + c] *= factor;
  log_max_[f] = log_max;
}

bool FeatureState::Empty(int64_t f) const {
  return log_max_[f] == -kInfinity && u_[f] == 0;  // a NaN in u is not empty
}

void FeatureState::Add(std::span<const double> log_phi, std::span<const double> value) {
  WINNOW_CHECK(std::ssize(log_phi) == n_features() && std::ssize(value) == value_dim_,
               "{} features and values of {} for a state of {} by {}", log_phi.size(), value.size(),
               n_features(), value_dim_);
  for (int64_t f = 0; f < n_features(); ++f) {
    if (log_phi[f] == -kInfinity) continue;
    Rescale(f, log_phi[f]);
    const double phi = std::exp(log_phi[f] - log_max_[f]);
    u_[f] += phi;
    for (int64_t c = 0; c < value_dim_; ++c) s_[f * value_dim_ + c] += phi * value[c];
  }
}

void FeatureState::Merge(const FeatureState& other) {
  WINNOW_CHECK(other.n_features() == n_features() && other.value_dim_ == value_dim_);
  for (int64_t f = 0; f < n_features(); ++f) {
    if (other.Empty(f)) continue;
    Rescale(f, other.log_max_[f]);
    const double factor = std::exp(other.log_max_[f] - log_max_[f]);
    u_[f] += factor * other.u_[f];
    for (int64_t c = 0; c < value_dim_; ++c) {
      s_[f * value_dim_ + c] += factor * other.s_[f * value_dim_ + c];
    }
  }
}

void FeatureState::Subtract(const FeatureState& other, double guard) {
  WINNOW_CHECK(other.n_features() == n_features() && other.value_dim_ == value_dim_ && guard >= 0);
  for (int64_t f = 0; f < n_features(); ++f) {
    if (other.Empty(f)) continue;
    const double factor = std::exp(other.log_max_[f] - log_max_[f]);
    const double rest = u_[f] - factor * other.u_[f];
    const bool empty = rest <= guard * u_[f];
    for (int64_t c = 0; c < value_dim_; ++c) {
      double& s = s_[f * value_dim_ + c];
      s = empty ? 0 : s - factor * other.s_[f * value_dim_ + c];
    }
    u_[f] = empty ? 0 : rest;
    if (empty) log_max_[f] = -kInfinity;
  }
}

double FeatureState::Reference(std::span<const double> log_phi_q) const {
  WINNOW_CHECK(std::ssize(log_phi_q) == n_features(), "{} features of a state of {}",
               log_phi_q.size(), n_features());
  double max = -kInfinity;
  for (int64_t f = 0; f < n_features(); ++f) {
    if (Empty(f)) continue;
    const double weight = log_phi_q[f] + log_max_[f];
    if (std::isnan(weight) || weight == kInfinity || std::isnan(u_[f])) return kNaN;
    max = std::max(max, weight);
  }
  return max;
}

double FeatureState::EstimateLogMass(std::span<const double> log_phi_q, double log_gain) const {
  const double reference = Reference(log_phi_q);
  if (reference == -kInfinity) return reference;
  double sum = 0;
  for (int64_t f = 0; f < n_features(); ++f) {
    if (!Empty(f)) sum += std::exp(log_phi_q[f] + log_max_[f] - reference) * u_[f];
  }
  return log_gain + reference + std::log(sum);
}

PartialAttention FeatureState::Estimate(std::span<const double> log_phi_q, double log_gain) const {
  PartialAttention state = NoAttention(value_dim_);
  const double reference = Reference(log_phi_q);
  if (reference == -kInfinity) return state;
  double sum = 0;
  for (int64_t f = 0; f < n_features(); ++f) {
    if (Empty(f)) continue;
    const double phi = std::exp(log_phi_q[f] + log_max_[f] - reference);
    sum += phi * u_[f];
    for (int64_t c = 0; c < value_dim_; ++c) state.out[c] += phi * s_[f * value_dim_ + c];
  }
  for (double& x : state.out) x /= sum;
  state.log_mass = log_gain + reference + std::log(sum);
  return state;
}

PhiEstimate EstimateResidual(const FeatureState& middle, const FeatureState& rest,
                             std::span<const double> log_phi_q, double log_gain,
                             double mass_guard) {
  PhiEstimate estimate{rest.Estimate(log_phi_q, log_gain)};
  const double before = middle.EstimateLogMass(log_phi_q, log_gain);
  const double after = estimate.state.log_mass;
  if (after == -kInfinity || after <= before + std::log(mass_guard)) {
    estimate = {NoAttention(middle.value_dim()), true};
  }
  return estimate;
}

}  // namespace winnow
