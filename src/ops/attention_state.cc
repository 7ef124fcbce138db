#include "ops/attention_state.h"

#include <algorithm>
#include <cmath>

namespace winnow {

void MergeAttentionState(float* out, float* log_mass, const float* other_out, float other_log_mass,
                         int64_t head_dim) {
  if (other_log_mass == kEmptyLogMass && !std::isnan(*log_mass)) return;
  if (*log_mass == kEmptyLogMass && !std::isnan(other_log_mass)) {
    std::copy_n(other_out, head_dim, out);
    *log_mass = other_log_mass;
    return;
  }
  // Here a NaN in either mass reaches both weights: of max and min, at least one is then NaN.
  const float max = std::max(*log_mass, other_log_mass);
  const float mass = std::exp(*log_mass - max);
  const float other_mass = std::exp(other_log_mass - max);
  const float total = mass + other_mass;
  const float weight = mass / total;
  const float other_weight = other_mass / total;
  for (int64_t i = 0; i < head_dim; ++i) {
    out[i] = weight * out[i] + other_weight * other_out[i];
  }
  *log_mass = max + std::log(total);
}

}  // namespace winnow
