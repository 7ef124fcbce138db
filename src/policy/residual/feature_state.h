// The learned maps' memory of the middle: Σ φ_k(k_i) and Σ φ_k(k_i)·v_iᵀ per feature, kept against
// each feature's largest log value, with merge, guarded subtraction and the estimate from it
// (Residual-Mass Accounting, `phi` and `phi_nosub`).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "policy/residual/partial_attention.h"

namespace winnow {

// What counts as rounding noise after a subtraction, relative to before it.
struct SubtractionGuards {
  double feature = 1e-10;  // u_R[f] <= feature·u_mid[f]: the feature is empty, also in S_R
  double mass = 1e-10;     // Ẑ_R <= mass·Ẑ_mid: no residual
};
inline constexpr SubtractionGuards kFloat64Guards{1e-10, 1e-10};
// For states that are stored or summed in float32, whose noise is about 1e-7 a token.
inline constexpr SubtractionGuards kFloat32Guards{1e-5, 1e-3};

// F features, values of Dv. u[f] = e^{m[f]}·scaled_u[f]; m[f] = max_i log φ_k(k_i)[f], -inf for an
// empty feature. A NaN or +inf feature makes its sums NaN.
class FeatureState {
 public:
  FeatureState(int64_t n_features, int64_t value_dim);

  int64_t n_features() const { return std::ssize(log_max_); }
  int64_t value_dim() const { return value_dim_; }
  int64_t bytes() const;  // what one state occupies

  // One token: log_phi [F] (a feature of -inf gets nothing), value [Dv].
  void Add(std::span<const double> log_phi, std::span<const double> value);
  // Adds the tokens of `other`, which has the same shape and none of them.
  void Merge(const FeatureState& other);
  // Takes out the tokens of `other`, which this state has. A feature with u_R <= guard·u of before
  // (also a negative one, where `other` was no part) becomes empty, in S as well: clamping u alone
  // would leave rounding noise in S over a tiny u.
  void Subtract(const FeatureState& other, double guard);

  // Ẑ = gain·φ_qᵀu, N̂ = gain·φ_qᵀS; log_phi_q [F], log_gain the log of what scales both. For a
  // state of the whole middle this is `phi_nosub`, which counts the retrieved tokens twice.
  PartialAttention Estimate(std::span<const double> log_phi_q, double log_gain) const;
  // log Ẑ alone.
  double EstimateLogMass(std::span<const double> log_phi_q, double log_gain) const;

  std::span<const double> log_max() const { return log_max_; }
  std::span<const double> scaled_u() const { return u_; }  // [F]
  TensorView<const double, 2> scaled_s() const { return {s_.data(), {n_features(), value_dim_}}; }

 private:
  // Raises the reference of feature f to `log_max` if that is larger.
  void Rescale(int64_t f, double log_max);
  bool Empty(int64_t f) const;
  // log of the largest φ_q[f]·e^{m[f]} over the features that are not empty; -inf for none, NaN if
  // one is, or is infinite.
  double Reference(std::span<const double> log_phi_q) const;

  int64_t value_dim_;
  std::vector<double> log_max_;  // [F]
  std::vector<double> u_;        // [F]
  std::vector<double> s_;        // [F, Dv]
};

struct PhiEstimate {
  PartialAttention state;
  bool dropped = false;  // the mass guard fired, or there was nothing left: `state` is the identity
};
// `phi`: `rest` is the middle without the retrieved tokens (Subtract), made once a KV head; this is
// per query head. Ẑ_R <= mass_guard·Ẑ_mid drops the residual.
PhiEstimate EstimateResidual(const FeatureState& middle, const FeatureState& rest,
                             std::span<const double> log_phi_q, double log_gain, double mass_guard);

}  // namespace winnow
