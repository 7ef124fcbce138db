#include "ops/page_planes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/check.h"
#include "ops/kv_store_cpu.h"
#include "ops/super_pages.h"

namespace winnow {
namespace {

constexpr uint16_t kNan = 0x7e00;
constexpr int kLaneBytes = 4;
constexpr int kLineBytes = kSketchLanes * kLaneBytes;

// The neighbouring f16, as bits, towards +inf or −inf. Not for infinities and NaN.
uint16_t StepF16(uint16_t bits, bool up) {
  const bool negative = (bits & 0x8000U) != 0;
  if ((bits & 0x7fffU) == 0) return up ? 0x0001U : 0x8001U;
  return static_cast<uint16_t>(negative == up ? bits - 1 : bits + 1);
}

float FromF16(uint16_t bits) {
  float value;
  LoadRowCpu(DType::kF16, reinterpret_cast<const std::byte*>(&bits), 1, &value);
  return value;
}

// Nearest f16 on one side of `x`.
uint16_t RoundF16(double x, bool up) {
  const auto nearest = static_cast<float>(x);
  uint16_t bits;
  StoreRowCpu(DType::kF16, &nearest, 1, reinterpret_cast<std::byte*>(&bits));
  const auto value = static_cast<double>(FromF16(bits));
  return (up ? value < x : value > x) ? StepF16(bits, up) : bits;
}

float RoundUpToFloat(double x) {
  const auto value = static_cast<float>(x);
  return static_cast<double>(value) < x
             ? std::nextafter(value, std::numeric_limits<float>::infinity())
             : value;
}

// The byte and shift of one code. `lane` counts what lies side by side, `row` what is summed over;
// `n_rows` of each lane.
struct CodePlace {
  CodePlace(int bits, int64_t n_rows, int64_t lane, int64_t row) {
    const int64_t per_line = 4 * (8 / bits);  // rows of a line
    const int64_t line = lane / kSketchLanes * (n_rows / per_line) + row / per_line;
    byte = line * kLineBytes + lane % kSketchLanes * kLaneBytes + row % 4;
    shift = static_cast<int>(row % per_line / 4) * bits;
  }
  int64_t byte;
  int shift;
};

CodePlace PlaceOf(const PageLayout& layout, int bits, bool keys, int64_t slot, int64_t channel) {
  return keys ? CodePlace(bits, layout.padded_dim, slot, channel)
              : CodePlace(bits, layout.slots, channel, slot);
}

// Minimum and step of one channel of a sketch.
struct Grid {
  uint16_t minimum = 0;  // f16
  float base = 0;        // as a number
  double needed = 0;     // the least step; NaN if the channel holds what f16 cannot
  uint8_t step = 0;      // in 256ths of the group's scale
};

// values [G], `stride` apart.
Grid CoveringGrid(const float* values, int64_t n, int64_t stride, int max_code) {
  float low = values[0];
  float high = values[0];
  bool finite = true;
  for (int64_t t = 0; t < n; ++t) {
    const float x = values[t * stride];
    finite = finite && std::abs(x) <= kLargestF16;
    low = std::min(low, x);
    high = std::max(high, x);
  }
  Grid grid;
  grid.minimum = finite ? RoundF16(low, false) : kNan;
  grid.base = FromF16(grid.minimum);
  grid.needed = (static_cast<double>(high) - grid.base) / max_code;
  return grid;
}

// Chooses the scale of one group, whose 256th is the unit of its steps, and these. NaN if one of
// the channels is.
uint16_t ScaleSteps(std::span<Grid> group) {
  constexpr double kUnits = 256;
  double largest = 0;
  for (const Grid& grid : group) {
    if (std::isnan(grid.needed)) return kNan;
    largest = std::max(largest, grid.needed);
  }
  const uint16_t scale = RoundF16(largest * (kUnits / 255), true);
  const double unit = FromF16(scale) / kUnits;
  for (Grid& grid : group) {
    grid.step = unit > 0 ? static_cast<uint8_t>(std::min(std::ceil(grid.needed / unit), 255.0)) : 0;
  }
  return scale;
}

// Writes the codes of one channel [G] (stride D) on a grid of that step; adds the squared errors of
// its tokens to `errors` [G].
void WriteCodes(const PageLayout& layout, const float* values, int bits, bool keys, int64_t channel,
                double base, double step, std::byte* codes, std::vector<double>& errors) {
  const int max_code = (1 << bits) - 1;
  for (int64_t t = 0; t < layout.slots; ++t) {
    const double x = values[t * layout.head_dim];
    const double exact = step > 0 ? (x - base) / step : 0;
    const int code = std::clamp(static_cast<int>(std::floor(exact + 0.5)), 0, max_code);
    const CodePlace place = PlaceOf(layout, bits, keys, t, channel);
    codes[place.byte] |= static_cast<std::byte>(code << place.shift);
    const double error = x - (base + step * code);
    errors[t] += error * error;
  }
}

// values [G, D]: the keys or values of one head of a full page.
void WriteSketch(const PageLayout& layout, const float* values, int bits, bool keys,
                 std::byte* plane) {
  const SketchFormat format(layout, bits);
  const int64_t dim = layout.head_dim;
  std::memset(plane, 0, layout.PlaneBytes(keys ? KeySketchPlane(bits) : ValueSketchPlane(bits)));
  std::vector<Grid> grids(dim);
  for (int64_t c = 0; c < dim; ++c) {
    grids[c] = CoveringGrid(values + c, layout.slots, dim, (1 << bits) - 1);
  }
  std::vector<double> errors(layout.slots, 0.0);
  const int64_t group_width = int64_t{1} << SketchFormat::GroupShift(format.dim);
  for (int64_t first = 0; first < dim; first += group_width) {
    const int64_t end = std::min(first + group_width, dim);
    const uint16_t scale = ScaleSteps(std::span(grids).subspan(first, end - first));
    std::memcpy(SketchFormat::Scales(plane) + first / group_width * sizeof(scale), &scale,
                sizeof(scale));
    for (int64_t c = first; c < end; ++c) {
      const Grid& grid = grids[c];
      format.Steps(plane)[c] = static_cast<std::byte>(grid.step);
      std::memcpy(SketchFormat::Minima(plane) + c * sizeof(grid.minimum), &grid.minimum,
                  sizeof(grid.minimum));
      WriteCodes(layout, values + c, bits, keys, c, grid.base,
                 static_cast<double>(FromF16(scale)) / 256 * grid.step, format.Codes(plane),
                 errors);
    }
  }
  double largest = 0;
  for (double error : errors) largest = std::isnan(error) ? error : std::max(largest, error);
  // A relative 1e-12 is far above the rounding of sums of a few hundred doubles.
  const float bound = RoundUpToFloat(std::sqrt(largest) * (1 + 1e-12));
  std::memcpy(format.Error(plane), &bound, sizeof(bound));
}

// Makes every score from a sketch of keys NaN, as a key that f16 cannot hold does.
void SpoilSketch(const SketchFormat& format, std::byte* plane) {
  const float error = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(format.Error(plane), &error, sizeof(error));
  std::memcpy(SketchFormat::Scales(plane), &kNan, sizeof(kNan));
}

// Mean and deviation over the page, from double. Either may be null.
void Moments(const PageLayout& layout, const float* values, float* mean, float* deviation) {
  for (int64_t c = 0; c < layout.head_dim; ++c) {
    double sum = 0;
    for (int64_t t = 0; t < layout.slots; ++t) sum += values[t * layout.head_dim + c];
    const double centre = sum / layout.slots;
    if (mean != nullptr) mean[c] = static_cast<float>(centre);
    if (deviation == nullptr) continue;
    double squares = 0;
    for (int64_t t = 0; t < layout.slots; ++t) {
      const double x = values[t * layout.head_dim + c] - centre;
      squares += x * x;
    }
    deviation[c] = static_cast<float>(std::sqrt(squares / layout.slots));
  }
}

// box: the rows of minima and of maxima.
void WriteBox(const PageLayout& layout, const float* keys, std::byte* box) {
  for (int64_t c = 0; c < layout.head_dim; ++c) {
    float low = keys[c];
    float high = keys[c];
    for (int64_t t = 1; t < layout.slots; ++t) {
      const float x = keys[t * layout.head_dim + c];
      low = std::isnan(x) ? x : std::min(low, x);
      high = std::isnan(x) ? x : std::max(high, x);
    }
    const uint16_t down = std::isnan(low) ? kNan : RoundF16(low, false);
    const uint16_t up = std::isnan(high) ? kNan : RoundF16(high, true);
    std::memcpy(box + 2 * c, &down, sizeof(down));
    std::memcpy(box + layout.KeyRowBytes() + 2 * c, &up, sizeof(up));
  }
}

// Of keys [G, D] in which what f16 cannot hold is NaN.
void WriteKeyStatistics(const PageLayout& layout, int head, const float* keys, std::byte* side) {
  const auto cleared = [&](Plane plane) {
    std::byte* begin = side + layout.PlaneOffset(plane, head);
    std::memset(begin, 0, layout.PlaneBytes(plane));
    return begin;
  };
  const bool with_mean = layout.planes.Has(Plane::kKeyMean);
  const bool with_deviation = layout.planes.Has(Plane::kKeyDeviation);
  if (with_mean || with_deviation) {
    std::vector<float> mean(layout.head_dim);
    std::vector<float> deviation(layout.head_dim);
    Moments(layout, keys, mean.data(), with_deviation ? deviation.data() : nullptr);
    const auto store = [&](Plane plane, const std::vector<float>& row) {
      StoreRowCpu(DType::kF16, row.data(), layout.head_dim, cleared(plane));
    };
    if (with_mean) store(Plane::kKeyMean, mean);
    if (with_deviation) store(Plane::kKeyDeviation, deviation);
  }
  if (layout.planes.Has(Plane::kKeyBox)) WriteBox(layout, keys, cleared(Plane::kKeyBox));
}

// The largest eigenvalue of (1/G)·Σ (v − m)(v − m)ᵀ, from above: the fourth root of the trace of
// the fourth power of the Gram matrix, whose eigenvalues are the same. No iteration has to
// converge, and of G equal eigenvalues, the worst case, it is too large by a factor of G^(1/4).
double EigenvalueBound(const std::vector<double>& centred, int64_t n, int64_t dim) {
  std::vector<double> gram(n * n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t c = 0; c < dim; ++c) sum += centred[i * dim + c] * centred[j * dim + c];
      gram[i * n + j] = gram[j * n + i] = sum / static_cast<double>(n);
    }
  }
  double fourth = 0;
  std::vector<double> row(n);
  for (int64_t i = 0; i < n; ++i) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t k = 0; k < n; ++k) {
      for (int64_t j = 0; j < n; ++j) row[j] += gram[i * n + k] * gram[k * n + j];
    }
    for (double x : row) fourth += x * x;
  }
  return std::sqrt(std::sqrt(fourth));
}

void WriteSpread(const PageLayout& layout, const float* values, float* spread) {
  const int64_t dim = layout.head_dim;
  std::vector<float> mean(dim);
  Moments(layout, values, mean.data(), nullptr);
  std::vector<double> centred(layout.slots * dim);
  double largest = 0;
  for (int64_t t = 0; t < layout.slots; ++t) {
    double squares = 0;
    for (int64_t c = 0; c < dim; ++c) {
      const double x = static_cast<double>(values[t * dim + c]) - mean[c];
      centred[t * dim + c] = x;
      squares += x * x;
    }
    largest = std::isnan(squares) ? squares : std::max(largest, squares);
  }
  // Relative 1e-9 is far above the rounding of sums of so many products.
  spread[0] = RoundUpToFloat(std::sqrt(largest) * (1 + 1e-9));
  spread[1] = RoundUpToFloat(std::sqrt(EigenvalueBound(centred, layout.slots, dim)) * (1 + 1e-9));
}

// The planes of one head of a page, from its keys and values [G, D]. Of the keys, what f16 cannot
// hold is NaN.
void WritePlanes(const PageLayout& layout, int head, const float* keys, const float* values,
                 std::byte* side) {
  const auto bytes = [&](Plane plane) { return side + layout.PlaneOffset(plane, head); };
  const auto floats = [&](Plane plane) {
    auto* begin = reinterpret_cast<float*>(bytes(plane));
    std::fill_n(begin, layout.PlaneBytes(plane) / sizeof(float), 0.0f);
    return begin;
  };
  const PlaneSet& planes = layout.planes;
  bool values_fit = true;
  for (const int bits : {2, 4}) {
    const Plane plane = ValueSketchPlane(bits);
    if (!planes.Has(plane)) continue;
    WriteSketch(layout, values, bits, false, bytes(plane));
    values_fit = values_fit && !std::isnan(SketchError(layout, bytes(plane), bits));
  }
  for (const int bits : {2, 4, 8}) {
    const Plane plane = KeySketchPlane(bits);
    if (!planes.Has(plane)) continue;
    WriteSketch(layout, keys, bits, true, bytes(plane));
    if (!values_fit) SpoilSketch(SketchFormat(layout, bits), bytes(plane));
  }
  WriteKeyStatistics(layout, head, keys, side);
  if (planes.Has(Plane::kValueMean)) Moments(layout, values, floats(Plane::kValueMean), nullptr);
  if (planes.Has(Plane::kValueSpread)) WriteSpread(layout, values, floats(Plane::kValueSpread));
}

// The planes of the full pages of `layer` that hold a token of [first, end).
void WritePagePlanes(ThreadPool& pool, SequenceKv* kv, int layer, int64_t first, int64_t end) {
  const PagedKv view = kv->View(layer);
  const PageLayout& layout = *view.layout;
  const int64_t first_page = first / layout.slots;
  const int64_t n_pages = end / layout.slots - first_page;
  if (n_pages <= 0) return;
  std::vector<std::byte*> sides;
  for (int64_t page = 0; page < n_pages; ++page) {
    sides.push_back(kv->Planes(layer, first_page + page));
  }
  const int64_t block = static_cast<int64_t>(layout.slots) * layout.head_dim;
  std::vector<float> rows(static_cast<size_t>(pool.size()) * 2 * block);
  pool.ForEach(n_pages * layout.kv_heads, [&](int64_t task, int thread) {
    const int64_t page = task / layout.kv_heads;
    const auto head = static_cast<int>(task % layout.kv_heads);
    float* keys = rows.data() + static_cast<int64_t>(thread) * 2 * block;
    float* values = keys + block;
    for (int64_t t = 0; t < layout.slots; ++t) {
      const size_t offset = static_cast<size_t>(t) * layout.row_bytes;
      LoadRowCpu(layout.dtype, view.Keys(first_page + page, head) + offset, layout.head_dim,
                 keys + t * layout.head_dim);
      LoadRowCpu(layout.dtype, view.Values(first_page + page, head) + offset, layout.head_dim,
                 values + t * layout.head_dim);
    }
    for (int64_t i = 0; i < block; ++i) {
      if (!(std::abs(keys[i]) <= kLargestF16)) keys[i] = std::numeric_limits<float>::quiet_NaN();
    }
    WritePlanes(layout, head, keys, values, sides[page]);
  });
}

}  // namespace

Plane KeySketchPlane(int bits) {
  WINNOW_CHECK(bits == 2 || bits == 4 || bits == 8, "a key sketch of {} bits", bits);
  return bits == 2 ? Plane::kKeys2 : bits == 4 ? Plane::kKeys4 : Plane::kKeys8;
}

Plane ValueSketchPlane(int bits) {
  WINNOW_CHECK(bits == 2 || bits == 4, "a value sketch of {} bits", bits);
  return bits == 2 ? Plane::kValues2 : Plane::kValues4;
}

void UpdatePlanes(ThreadPool& pool, SequenceKv* kv, int layer, int64_t first, int64_t end) {
  if (kv->pool().layout().planes.empty() || first >= end) return;
  WritePagePlanes(pool, kv, layer, first, end);
  UpdateSuperPages(kv, layer);
}

void LoadSketchRow(const PageLayout& layout, const std::byte* plane, int bits, bool keys, int slot,
                   std::span<float> row) {
  const SketchFormat format(layout, bits);
  WINNOW_CHECK(std::ssize(row) == layout.head_dim && 0 <= slot && slot < layout.slots,
               "slot {} of {}", slot, layout.slots);
  for (int64_t c = 0; c < layout.head_dim; ++c) {
    uint16_t minimum;
    uint16_t scale;
    std::memcpy(&minimum, SketchFormat::Minima(plane) + c * sizeof(minimum), sizeof(minimum));
    std::memcpy(
        &scale,
        SketchFormat::Scales(plane) + (c >> SketchFormat::GroupShift(format.dim)) * sizeof(scale),
        sizeof(scale));
    const float step = FromF16(scale) / 256 * static_cast<float>(format.Steps(plane)[c]);
    const CodePlace place = PlaceOf(layout, bits, keys, slot, c);
    const auto byte = static_cast<uint8_t>(format.Codes(plane)[place.byte]);
    const int code = byte >> place.shift & ((1 << bits) - 1);
    row[c] = FromF16(minimum) + step * static_cast<float>(code);
  }
}

void LoadKeyStatistics(const PagedKv& kv, Plane plane, int row, int64_t page, int head,
                       std::span<float> values) {
  const int n_rows = plane == Plane::kKeyBox ? 2 : 1;
  WINNOW_CHECK(std::ssize(values) <= kv.layout->padded_dim && 0 <= row && row < n_rows,
               "{} values of row {}", values.size(), row);
  LoadRowCpu(DType::kF16, kv.PlaneOf(plane, page, head) + row * kv.layout->KeyRowBytes(),
             std::ssize(values), values.data());
}

float SketchError(const PageLayout& layout, const std::byte* plane, int bits) {
  float error;
  std::memcpy(&error, SketchFormat(layout, bits).Error(plane), sizeof(error));
  return error;
}

}  // namespace winnow
