// Partial attention as a value, {out, log_mass} per query head, with an identity and the one merge.
//
// Exact attention, a residual estimate and a split of the KV over threads or devices all return it.
// `out` is normalised by its own mass: out = Σ exp(s_i)·v_i / Σ exp(s_i), log_mass = log Σ
// exp(s_i), natural log of the scaled scores. The identity is out = 0, log_mass = -inf (no token
// read).
#pragma once

#include <cstdint>
#include <limits>

namespace winnow {

inline constexpr float kEmptyLogMass = -std::numeric_limits<float>::infinity();

// Merges `other` into `state`: out [D], one log mass each. Both may be the identity. A NaN in
// either log mass makes the result NaN. Exact up to rounding for any split of the same tokens.
void MergeAttentionState(float* out, float* log_mass, const float* other_out, float other_log_mass,
                         int64_t head_dim);

}  // namespace winnow
