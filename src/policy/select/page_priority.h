// EntroPrefill's rule for pages (its section 7): a page is worth what its most important token is,
// and importance is attention pooled over the heads of a group by their collision entropy.
//
// Plain double functions over spans; ties go to the lower index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

struct HeadPooling {
  double tau = 1;       // temperature of the weights, > 0
  double zeta = 0.5;    // share that all heads get alike, in [0, 1]
  double z_min = 0.05;  // mass off the sinks below which a head has no say
};

// w_h of (4) for attention rows a [R, n], whose first `n_sinks` tokens are sinks: v_h = C_h^(1/τ)
// over the sum of the eligible heads', C_h (3) the collision sum of a_h off the sinks, and w_h =
// (1 − ζ)·v_h + ζ/R. Uniform if no head is eligible. weights [R].
void PoolingWeights(TensorView<const double, 2> a, int64_t n_sinks, const HeadPooling& options,
                    std::span<double> weights);

// p_j = Σ_h w_h·a_hj over its own sum, p [n]; the priority I(P) = max p_j (29) of consecutive pages
// of `page_tokens`, the last of which may be short. NaN in, NaN out.
void PagePriorities(TensorView<const double, 2> a, std::span<const double> weights,
                    int64_t page_tokens, std::span<double> priorities);

// The pages outside [begin, end), which are protected, and of the others the best until there are
// `quota`, ascending. With a quota below the number of protected pages: those alone.
std::vector<int64_t> RetainedPages(std::span<const double> priorities, int64_t begin, int64_t end,
                                   int64_t quota);

}  // namespace winnow
