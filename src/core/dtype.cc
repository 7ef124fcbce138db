#include "core/dtype.h"

#include "core/check.h"
#include "core/error.h"

namespace winnow {

size_t RowBytes(DType dtype, int64_t n) {
  WINNOW_CHECK(n >= 0);
  const auto values = static_cast<size_t>(n);
  switch (dtype) {
    case DType::kF32:
      return values * sizeof(float);
    case DType::kF16:
      return values * sizeof(uint16_t);
    case DType::kQ8_0:
      WINNOW_CHECK(n % kQ8BlockValues == 0, "q8_0 rows hold multiples of 32 values, not {}", n);
      return values / kQ8BlockValues * kQ8BlockBytes;
  }
  WINNOW_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
}

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kQ8_0:
      return "q8_0";
  }
  WINNOW_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
}

DType ParseDType(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  Throw(ErrorKind::kUsage, "unknown KV type '{}': f16, f32 and q8_0 are known", name);
}

}  // namespace winnow
