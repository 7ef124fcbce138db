#include "ops/kv_store_cpu.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>

#include "core/check.h"

namespace winnow {
namespace {

// The cache's types are ggml's, so its conversions are ours.
ggml_type GgmlType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return GGML_TYPE_F32;
    case DType::kF16:
      return GGML_TYPE_F16;
    case DType::kQ8_0:
      return GGML_TYPE_Q8_0;
  }
  WINNOW_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
}

}  // namespace

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
