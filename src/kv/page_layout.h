// How keys and values, and what is kept beside them, lie inside one page: the only place that does
// page arithmetic.
//
// A page holds `slots` tokens (G) of one layer for all KV heads, head-major and contiguous:
// [K][k|v][G][D]. A row (one token of one head, D values) is `row_bytes` long.
//
// Beside a page lie its planes, [plane][K][plane bytes]: low-bit copies and statistics of its keys
// and values, written once when the page is full (ops/page_planes.h says how each looks). They are
// in a range of addresses of their own, so that scanning them does not stride over the pages, and
// a pool without planes has no such range.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/dtype.h"

namespace winnow {

using PageId = int32_t;
inline constexpr PageId kNoPage = -1;
inline constexpr int kDefaultPageSlots = 32;
// Tokens, or channels, that lie side by side in a sketch: the lanes of the widest vector.
inline constexpr int kSketchLanes = 16;
inline constexpr int kMaxSketchSlots = 128;
// Pages whose summaries are merged to that of one super-page.
inline constexpr int kSuperPagePages = 16;
inline constexpr int kMaxSketchDim = 512;
// Groups of channels that share a scale of steps, at most.
inline constexpr int kSketchStepGroups = 16;
// Of a sketch of P channels, what stands before the codes (ops/page_planes.h).
inline constexpr size_t SketchGridBytes(size_t padded_dim) {
  const size_t bytes = kSketchStepGroups * sizeof(uint16_t) + sizeof(float) +
                       padded_dim * (sizeof(uint8_t) + sizeof(uint16_t));
  return (bytes + 63) / 64 * 64;
}
inline constexpr int kValueSpreadFloats = 2;

enum class Plane : uint8_t {
  kKeys2,  // sketches: a copy at that many bits, minimum and step a channel
  kKeys4,
  kKeys8,
  kValues2,
  kValues4,
  kKeyMean,  // statistics of keys: rows of f16
  kKeyDeviation,
  kKeyBox,       // two rows: minima, maxima
  kValueMean,    // a row of f32
  kValueSpread,  // two floats, upper bounds around the stored mean: see ops/page_planes.h
};
inline constexpr int kPlanes = 10;

class PlaneSet {
 public:
  constexpr PlaneSet() = default;
  constexpr PlaneSet(std::initializer_list<Plane> planes) {
    for (Plane plane : planes) Add(plane);
  }
  constexpr bool Has(Plane plane) const { return (bits_ >> static_cast<int>(plane) & 1) != 0; }
  constexpr void Add(Plane plane) { bits_ |= 1U << static_cast<int>(plane); }
  constexpr void Add(PlaneSet other) { bits_ |= other.bits_; }
  constexpr bool Contains(PlaneSet other) const { return (other.bits_ & ~bits_) == 0; }
  constexpr bool empty() const { return bits_ == 0; }
  bool operator==(const PlaneSet&) const = default;

 private:
  uint32_t bits_ = 0;
};

struct PageLayout {
  int kv_heads = 0;  // K
  int slots = 0;     // G
  int head_dim = 0;  // D
  DType dtype = DType::kF16;
  size_t row_bytes = 0;
  size_t block_bytes = 0;  // the keys, or the values, of one head: G rows
  size_t page_bytes = 0;   // all heads, rounded up to a multiple of 64

  PlaneSet planes;
  int padded_dim = 0;     // D rounded up to kSketchLanes: channels of a plane
  size_t side_bytes = 0;  // all planes of all heads, a multiple of 64; 0: no planes

  PageLayout() = default;
  // Throws Error(kUsage) if the dtype cannot hold rows of `head_dim` values (q8_0 needs D % 32 ==
  // 0), or a page cannot have one of `planes` (sketches need a multiple of kSketchLanes tokens, at
  // most kMaxSketchSlots, and heads of at most kMaxSketchDim).
  PageLayout(int kv_heads, int slots, int head_dim, DType dtype, PlaneSet planes = {});

  // Where a plane that the layout has begins, for one head, and its length; multiples of 64.
  size_t PlaneOffset(Plane plane, int head) const {
    const auto i = static_cast<size_t>(plane);
    return plane_offset[i] + static_cast<size_t>(head) * plane_bytes[i];
  }
  size_t PlaneBytes(Plane plane) const { return plane_bytes[static_cast<size_t>(plane)]; }
  // A row of the statistics of keys, a channel as f16.
  size_t KeyRowBytes() const { return static_cast<size_t>(padded_dim) * sizeof(uint16_t); }

  size_t KeyOffset(int head) const { return 2 * static_cast<size_t>(head) * block_bytes; }
  size_t ValueOffset(int head) const { return KeyOffset(head) + block_bytes; }
  // A page with its planes.
  int64_t TotalBytes() const { return static_cast<int64_t>(page_bytes + side_bytes); }
  // Bytes of keys and values that `n` tokens take in all heads (no padding).
  int64_t TokenBytes(int64_t n) const { return kv_heads * HeadBytes(n); }
  int64_t HeadBytes(int64_t n) const { return n * 2 * static_cast<int64_t>(row_bytes); }
  bool operator==(const PageLayout&) const = default;
  // Of a page that has only this one's statistics of keys, of which a super-page has its own.
  PageLayout SuperPageLayout() const;

  std::array<size_t, kPlanes> plane_offset{};
  std::array<size_t, kPlanes> plane_bytes{};  // of one head; 0 where the layout lacks the plane
};

}  // namespace winnow
