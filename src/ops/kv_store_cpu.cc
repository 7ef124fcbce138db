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
  } else if (dtype == DType::kF16) {
    // By the processor's instructions, many times as fast as the traits' conversion; where it has
    // none, by a table that has to be there.
    [[maybe_unused]] static const bool kInitialized = (ggml_cpu_init(), true);
    ggml_cpu_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(row), values, n);
  } else {
    ggml_get_type_traits(GgmlType(dtype))->to_float(row, values, n);
  }
}

}  // namespace winnow
