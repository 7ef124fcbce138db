// Estimates of the unread tokens' attention without learned parts: from page means, from a rank-1
// logit prior, from a sample. `none` is NoAttention (partial_attention.h).
//
// All are pure functions in double for one query head; `scaled_query` [D] carries the model's
// scale. A NaN in what is read makes the estimate NaN.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/rng.h"
#include "core/tensor_view.h"
#include "policy/residual/partial_attention.h"

namespace winnow {

// A log mass that is known to lie in [low, high]; without knowledge it is clipped to nothing.
struct LogMassInterval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

struct ResidualEstimate {
  PartialAttention state;
  int64_t clipped = 0;  // pages or strata whose mass was moved to the edge of its interval
};

// Summaries of N pages of one KV head. A page of no tokens has no mass.
struct PageMoments {
  TensorView<const double, 2> key_mean;      // [N, D]
  TensorView<const double, 2> key_variance;  // [N, D], population variance by channel; cumulant
  TensorView<const double, 2> value_mean;    // [N, Dv]
  std::span<const int64_t> counts;           // [N]
};

// Mass of a page log n + q·k̄, its value the mean V; `unread` lists page indices.
PartialAttention CentroidEstimate(const PageMoments& pages, std::span<const double> scaled_query,
                                  std::span<const int64_t> unread);

// Mass log n + q·k̄ + ½·Σ_c q_c²·var_c, clipped to the page's interval (one for each of `unread`;
// empty: no clipping), its value the mean V.
ResidualEstimate CumulantEstimate(const PageMoments& pages, std::span<const double> scaled_query,
                                  std::span<const int64_t> unread,
                                  std::span<const LogMassInterval> intervals);

// Means over the prompt for `resa`, of the scaled queries and of the keys.
struct ResaMeans {
  std::vector<double> query;  // μ_Q [D]
  std::vector<double> key;    // μ_K [D]
};
// scaled_queries [T, D] of one query head, keys [T, D] of its KV head; T >= 1.
ResaMeans MakeResaMeans(TensorView<const double, 2> scaled_queries,
                        TensorView<const double, 2> keys);

// The rank-1 logit prior: q·k ≈ μ_Q·k + (q − μ_Q)·μ_K, so that Ẑ = e^{(q−μ_Q)·μ_K}·Σ e^{μ_Q·k} over
// the unread, N̂ likewise. `unread_under_mean` is AttendRows of μ_Q over the unread tokens, which
// does not depend on the query: states of pages merged, or the middle's with the retrieved
// subtracted.
PartialAttention ResaEstimate(const ResaMeans& means, std::span<const double> scaled_query,
                              const PartialAttention& unread_under_mean);

// `n` of `positions` without replacement, each set equally likely, in the given order; all of them
// if there are fewer.
std::vector<int64_t> DrawWithoutReplacement(std::span<const int64_t> positions, int64_t n,
                                            Rng& rng);

// Unread tokens of which some were drawn: a page, or all of them for a uniform sample.
struct SampledStratum {
  std::vector<int64_t> drawn;  // positions, by DrawWithoutReplacement; at least one if size > 0
  int64_t size = 0;            // unread tokens of the stratum
  LogMassInterval interval;    // of the stratum's mass
};

// Ẑ = Σ_s clip((size/drawn)·Σ_drawn e^{q·k}), N̂ by the drawn tokens' values; keys [T, D], values
// [T, Dv]. Unbiased in Ẑ and N̂ where nothing is clipped.
ResidualEstimate SampleEstimate(std::span<const double> scaled_query,
                                TensorView<const double, 2> keys,
                                TensorView<const double, 2> values,
                                std::span<const SampledStratum> strata);

}  // namespace winnow
