// Plain double-precision oracles. Nothing here is fast; everything fast is tested against it.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor_view.h"

namespace winnow::reference {

// Attention of one query head over n keys: out [D] = Σ softmax(scale·q·k_i)·v_i and the log of the
// partition sum. q [D]; k, v [n, D]. n = 0 gives out = 0 and -inf.
double Attention(std::span<const double> q, TensorView<const double, 2> k,
                 TensorView<const double, 2> v, double scale, std::span<double> out);

}  // namespace winnow::reference
