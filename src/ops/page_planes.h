// Writes and reads the planes of full pages: low-bit sketches of keys and values, and statistics.
//
// A sketch holds, per page and channel, a minimum as f16 and a step, so that value ≈ minimum +
// step·code; the grid covers what it stands for (minimum rounded down, step up), so that a value is
// off by at most half a step. A step is a byte, in 256ths of an f16 that neighbouring channels
// share and which is a 255th more than the largest step among them, so that steps are rounded up by
// no more than a 255th of that; these are at most 16 groups of 4, 8, 16 or 32. The bytes of a
// sketch: 16 such f16 (0 where there is no group), minima [P] (P: channels padded to 16; a padded
// channel has minimum, step and codes 0), steps [P], as a float the largest ‖x − x̂‖ of the page
// rounded up, and from a multiple of 64 on codes in lines of 64.
//
// A line of a key sketch holds 16 tokens × 32/bits channels, one of a value sketch 16 channels ×
// 32/bits tokens: 16 lanes of four bytes, a byte for each of four neighbours, with those of the
// next four in the bits above. So one multiply-add of bytes serves 16 lanes. Lines follow in order
// [G/16][P·bits/32] for keys, [P/16][G·bits/32] for values.
//
// Statistics of keys are rows of P numbers as f16 (a padded channel has 0): mean and deviation
// rounded to the nearest, by way of f32; the box outward, the minima down and the maxima up.
//
// The mean of values is f32. Their spread is a radius >= max ‖v − m‖ and a deviation >= the root of
// the largest eigenvalue of (1/G)·Σ (v − m)(v − m)ᵀ, where m is the mean value as it is stored; NaN
// if a value is. Both are rounded up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "kv/sequence_kv.h"

namespace winnow {

inline constexpr float kLargestF16 = 65504;

// The sketch of keys (values) at that many bits. CHECKs that there is one.
Plane KeySketchPlane(int bits);
Plane ValueSketchPlane(int bits);

// Where the parts of a sketch lie: what the kernels need of the format above.
struct SketchFormat {
  SketchFormat(const PageLayout& layout, int bits_in)
      : bits(bits_in),
        dim(static_cast<size_t>(layout.padded_dim)),
        grid_bytes(SketchGridBytes(dim)),
        bytes(grid_bytes + static_cast<size_t>(layout.slots) * dim * bits / 8) {}

  // Channels of a group, as a power of two.
  static constexpr int GroupShift(size_t dim) {
    return dim <= 64 ? 2 : dim <= 128 ? 3 : dim <= 256 ? 4 : 5;
  }

  // The parts of a plane. Byte is std::byte or const std::byte.
  template <class Byte>
  static Byte* Scales(Byte* plane) {
    return plane;
  }
  template <class Byte>
  static Byte* Minima(Byte* plane) {
    return plane + kStepGroups * sizeof(uint16_t);
  }
  template <class Byte>
  Byte* Steps(Byte* plane) const {
    return Minima(plane) + dim * sizeof(uint16_t);
  }
  template <class Byte>
  Byte* Error(Byte* plane) const {
    return Steps(plane) + dim;
  }
  template <class Byte>
  Byte* Codes(Byte* plane) const {
    return plane + grid_bytes;
  }

  static constexpr size_t kStepGroups = kSketchStepGroups;
  int bits;
  size_t dim;         // P
  size_t grid_bytes;  // before the codes
  size_t bytes;
};

// Writes the planes of the pages of `layer` that hold a token of [first, end) and are full. Does
// nothing for a layout without planes. A number that f16 cannot hold, beyond 65504 or NaN, makes
// sketches NaN in its group of channels and, of a key, statistics in its channel; where it is one
// of the values, also the sketches of its page's keys. So every score of the page is NaN, and
// nobody estimates from what is not there.
void UpdatePlanes(ThreadPool& pool, SequenceKv* kv, int layer, int64_t first, int64_t end);

// Reads back row `slot` of a sketch as f32, [D], for tests and figures. `keys`: a key sketch.
void LoadSketchRow(const PageLayout& layout, const std::byte* plane, int bits, bool keys, int slot,
                   std::span<float> row);
// Reads row `row` of a page's statistics of keys as f32, [D] or, with the padding, more: 0, or of
// the box 0 (minima) or 1 (maxima). Also of super-pages.
void LoadKeyStatistics(const PagedKv& kv, Plane plane, int row, int64_t page, int head,
                       std::span<float> values);
// Largest ‖x − x̂‖ of the page.
float SketchError(const PageLayout& layout, const std::byte* plane, int bits);

}  // namespace winnow
