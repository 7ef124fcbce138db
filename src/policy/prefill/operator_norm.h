// The spectral norm of a large matrix of weights, enclosed by power iteration (small ones have
// SpectralNorm in stability.h).
#pragma once

#include <cstdint>

#include "core/tensor_view.h"

namespace winnow {

struct NormInterval {
  double low = 0;   // always a lower bound: ‖W·x‖ of a unit x
  double high = 0;  // an upper bound but for the probability that was asked for
};

// ‖W‖ in [low, high] with probability at least 1 − `failure` over the start, which `seed` draws.
// 200 products with W and Wᵀ, in double; `high` is at most some 7 % too large at failure = 1e-9.
// Seeded, so that the same matrix gives the same bounds. NaN if an entry is not finite.
NormInterval OperatorNormBounds(TensorView<const float, 2> matrix, uint64_t seed, double failure);

}  // namespace winnow
