// Element types of the KV cache and how many bytes a row of them takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace winnow {

enum class DType : uint8_t {
  kF32,
  kF16,   // IEEE half
  kQ8_0,  // ggml's block: 32 int8 values and one f16 scale, 34 bytes
};

inline constexpr int kQ8BlockValues = 32;
inline constexpr size_t kQ8BlockBytes = 34;

// Bytes of `n` consecutive values; for kQ8_0 `n` must be a multiple of 32.
size_t RowBytes(DType dtype, int64_t n);

std::string_view DTypeName(DType dtype);  // "f32", "f16", "q8_0"

// Throws Error(kUsage) that lists the known names.
DType ParseDType(std::string_view name);

}  // namespace winnow
