#include "kv/page_layout.h"

#include "core/error.h"
#include "core/tensor_view.h"

namespace winnow {
namespace {

constexpr size_t RoundUp(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

PageLayout::PageLayout(int kv_heads_in, int slots_in, int head_dim_in, DType dtype_in)
    : kv_heads(kv_heads_in), slots(slots_in), head_dim(head_dim_in), dtype(dtype_in) {
  if (kv_heads < 1 || slots < 1 || head_dim < 1) {
    Throw(ErrorKind::kUsage, "a KV page needs heads, slots and dimensions: {} x {} x {}", kv_heads,
          slots, head_dim);
  }
  if (dtype == DType::kQ8_0 && head_dim % kQ8BlockValues != 0) {
    Throw(ErrorKind::kUsage,
          "a q8_0 KV cache needs heads of a multiple of {} dimensions, and this model's have {}: "
          "use f16 or f32",
          kQ8BlockValues, head_dim);
  }
  row_bytes = RowBytes(dtype, head_dim);
  block_bytes = static_cast<size_t>(slots) * row_bytes;
  page_bytes = RoundUp(2 * static_cast<size_t>(kv_heads) * block_bytes, kAlignment);
}

}  // namespace winnow
