#include "kv/page_layout.h"

#include "core/error.h"
#include "core/tensor_view.h"

namespace winnow {
namespace {

constexpr size_t RoundUp(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Bits a value of a sketch; 0 for what is none.
int SketchBits(Plane plane) {
  switch (plane) {
    case Plane::kKeys2:
    case Plane::kValues2:
      return 2;
    case Plane::kKeys4:
    case Plane::kValues4:
      return 4;
    case Plane::kKeys8:
      return 8;
    default:
      return 0;
  }
}

// Of one head, before it is rounded up.
size_t BytesOf(Plane plane, const PageLayout& layout) {
  const auto dim = static_cast<size_t>(layout.padded_dim);
  switch (plane) {
    case Plane::kKeyMean:
    case Plane::kKeyDeviation:
      return layout.KeyRowBytes();
    case Plane::kKeyBox:
      return 2 * layout.KeyRowBytes();
    case Plane::kValueMean:
      return dim * sizeof(float);
    case Plane::kValueSpread:
      return kValueSpreadFloats * sizeof(float);
    default:
      return SketchGridBytes(dim) + static_cast<size_t>(layout.slots) * dim * SketchBits(plane) / 8;
  }
}

}  // namespace

PageLayout::PageLayout(int kv_heads_in, int slots_in, int head_dim_in, DType dtype_in,
                       PlaneSet planes_in)
    : kv_heads(kv_heads_in),
      slots(slots_in),
      head_dim(head_dim_in),
      dtype(dtype_in),
      planes(planes_in) {
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
  padded_dim = static_cast<int>(RoundUp(head_dim, kSketchLanes));
  for (int i = 0; i < kPlanes; ++i) {
    const auto plane = static_cast<Plane>(i);
    if (!planes.Has(plane)) continue;
    if (SketchBits(plane) > 0 && (slots % kSketchLanes != 0 || slots > kMaxSketchSlots)) {
      Throw(ErrorKind::kUsage,
            "a sketch needs pages of a multiple of {} tokens, at most {}, and these have {}",
            kSketchLanes, kMaxSketchSlots, slots);
    }
    if (SketchBits(plane) > 0 && head_dim > kMaxSketchDim) {
      Throw(
          ErrorKind::kUsage,
          "this model's heads have {} dimensions, and a sketch holds at most {}: use a dense arm, "
          "or one that selects by summaries (select=vashista)",
          head_dim, kMaxSketchDim);
    }
    plane_offset[i] = side_bytes;
    plane_bytes[i] = RoundUp(BytesOf(plane, *this), kAlignment);
    side_bytes += static_cast<size_t>(kv_heads) * plane_bytes[i];
  }
}

PageLayout PageLayout::SuperPageLayout() const {
  PlaneSet summaries;
  for (const Plane plane : {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox}) {
    // A deviation without its mean says nothing of several pages.
    if (plane == Plane::kKeyDeviation && !planes.Has(Plane::kKeyMean)) continue;
    if (planes.Has(plane)) summaries.Add(plane);
  }
  return {kv_heads, slots, head_dim, dtype, summaries};
}

}  // namespace winnow
