// Rows of the KV cache from and to f32, on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace winnow {

// Rounds `values` [n] to `dtype` at `row`, which takes RowBytes(dtype, n).
void StoreRowCpu(DType dtype, const float* values, int64_t n, std::byte* row);

// Reads `row` of n values back.
void LoadRowCpu(DType dtype, const std::byte* row, int64_t n, float* values);

}  // namespace winnow
