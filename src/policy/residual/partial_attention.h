// Partial attention as a value in double, for estimates and their accounting: mix, merge, subtract
// and put together with what was read exactly.
//
// The float state of the kernels is ops/attention_state.h; the meaning is the same: `out` is
// normalised by its own mass, `log_mass` is the natural log of the partition sum. A log weight or
// log mass that is NaN or +inf makes the result's mass and every output NaN, a NaN in a value its
// output; none is swallowed.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

struct PartialAttention {
  std::vector<double> out;  // [D]; zeros where the mass is zero
  double log_mass = -std::numeric_limits<double>::infinity();
};

// The identity: no token.
PartialAttention NoAttention(int64_t value_dim);

// out = Σ softmax(log_weights)_j·values[rows[j]], log_mass = log Σ exp(log_weights). values [T, D],
// log_weights and rows [n]. A weight of -inf takes its row out.
PartialAttention MixRows(std::span<const double> log_weights, TensorView<const double, 2> values,
                         std::span<const int64_t> rows);

// Exact attention of a scaled query [D] over some rows of keys [T, D] and values [T, Dv].
PartialAttention AttendRows(std::span<const double> scaled_query, TensorView<const double, 2> keys,
                            TensorView<const double, 2> values, std::span<const int64_t> rows);

// Σ_c q_c·k_c for each of `rows` of keys [T, D].
std::vector<double> RowScores(std::span<const double> scaled_query,
                              TensorView<const double, 2> keys, std::span<const int64_t> rows);

// Adds `other`'s tokens to `state`, which has none of them.
void Merge(PartialAttention& state, const PartialAttention& other);

// Takes the tokens of `part` out of `whole`, which has all of them. Where what is left is at most
// `relative_guard` of the whole it is rounding noise: the identity is returned. So the mass is
// never negative.
PartialAttention Subtract(const PartialAttention& whole, const PartialAttention& part,
                          double relative_guard);

// Completion: y = (N_E + N̂)/(Z_E + Ẑ), one normaliser for what was read and what was estimated
// (Residual-Mass Accounting; spec: y of section 3).
struct CompletedAttention {
  PartialAttention state;
  double residual_share = 0;  // ρ_res = Ẑ/(Z_E + Ẑ); 0 where nothing has mass
};
CompletedAttention Complete(const PartialAttention& exact, const PartialAttention& estimate);

}  // namespace winnow
