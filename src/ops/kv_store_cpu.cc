#include "ops/kv_store_cpu.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>

#include "core/ggml_dtype.h"

namespace winnow {

// The cache's types are ggml's, so its conversions are ours.
void StoreRowCpu(DType dtype, const float* values, int64_t n, std::byte* row) {
  ggml_get_type_traits_cpu(GgmlType(dtype))->from_float(values, row, n);
}

void LoadRowCpu(DType dtype, const std::byte* row, int64_t n, float* values) {
  if (dtype == DType::kF32) {
    std::memcpy(values, row, RowBytes(dtype, n));
  } else {
    ggml_get_type_traits(GgmlType(dtype))->to_float(row, values, n);
  }
}

}  // namespace winnow
