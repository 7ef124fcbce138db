// ggml's names of the element types of the KV cache, for code that calls ggml.
#pragma once

#include <ggml.h>

#include "core/check.h"
#include "core/dtype.h"

namespace winnow {

inline ggml_type GgmlType(DType dtype) {
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

}  // namespace winnow
