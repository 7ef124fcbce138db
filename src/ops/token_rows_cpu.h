// The CPU kernels behind token_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace winnow {

// dots[r · stride] = <q_r, x> for q [n, dim] and a row x of the cache.
void RowDotsCpu(DType dtype, const std::byte* x, const float* q, int64_t dim, int n, float* dots,
                int64_t stride);

// out_r += weights[r · stride]·x for out [n, dim] and a row x of the cache. A weight 0 adds
// nothing.
void AddRowCpu(DType dtype, const std::byte* x, const float* weights, int64_t stride, int64_t dim,
               int n, float* out);

}  // namespace winnow
