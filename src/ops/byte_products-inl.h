// What the kernels over sketches share (format: ops/page_planes.h): the steps of a page, factors
// rounded to bytes, and products of the codes with factors. Codes lie in lines of 16 lanes of four
// bytes, with further codes in the bits above; products are summed lane by lane, with bytes to
// 32-bit integers, for which AVX-512 VNNI and AVX2 have instructions, and with floats anywhere.
//
// Per-target include guard: foreach_target.h compiles this file once for each instruction set.
#if defined(WINNOW_OPS_BYTE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_BYTE_PRODUCTS_INL_H_
#undef WINNOW_OPS_BYTE_PRODUCTS_INL_H_
#else
#define WINNOW_OPS_BYTE_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/page_planes.h"
#include "ops/rows_cpu-inl.h"

#if HWY_ARCH_X86
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {

// Query heads that are processed together.
inline constexpr size_t kMaxHeadBlock = 4;

// Calls run(std::integral_constant<size_t, R>(), first) for blocks of R <= kMaxHeadBlock of the
// heads [0, n_heads), so that loops over a block's heads are unrolled.
template <class Run>
HWY_INLINE void ForEachHeadBlock(size_t n_heads, Run run) {
  for (size_t first = 0; first < n_heads; first += kMaxHeadBlock) {
    switch (n_heads - first) {
      case 1:
        run(std::integral_constant<size_t, 1>(), first);
        break;
      case 2:
        run(std::integral_constant<size_t, 2>(), first);
        break;
      case 3:
        run(std::integral_constant<size_t, 3>(), first);
        break;
      default:
        run(std::integral_constant<size_t, kMaxHeadBlock>(), first);
    }
  }
}

// Lines of memory that are prefetched one after the other, as they lie, in even steps between other
// work: in bursts, prefetches stall the processor, and out of order its own prefetcher, which can
// have more lines under way than these, does not follow.
class LinesAhead {
 public:
  explicit LinesAhead(const std::byte* begin) : next_(begin) {}
  HWY_INLINE void Prefetch() {
    __builtin_prefetch(next_, 0, 2);
    next_ += 64;
  }

 private:
  const std::byte* next_;  // never read: it may have passed the last plane
};

#if HWY_TARGET == HWY_AVX3_DL
// sum + Σ of four products a lane, of unsigned bytes and signed ones (as which codes may pass too).
// Highway 1.0.3 detects the instruction for this target but leaves it out of what the compiler may
// use, so the intrinsic does not compile.
HWY_INLINE __m512i AddByteProducts(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
  return sum;
}
#endif

// Stores the nearest integers of values in [0, 255] as bytes.
HWY_INLINE void StoreRoundedToUnsigned(VF32 values, uint8_t* to) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(values.raw));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
#else
  const hn::Rebind<uint8_t, F32> u8;
  hn::StoreU(hn::DemoteTo(u8, hn::NearestInt(values)), u8, to);
#endif
}

// The steps of a sketch. `group_shift`: SketchFormat::GroupShift.
class StepReader {
 public:
  explicit HWY_INLINE StepReader(int group_shift)
      : group_shift_(group_shift), groups_(GroupsOfLanes(group_shift)) {}

  // What Load needs of one page.
  struct Units {
    alignas(64) float values[SketchFormat::kStepGroups + kLanes];  // Load reads past the end
  };
  static HWY_INLINE void LoadUnits(const std::byte* plane, Units& units) {
    for (size_t i = 0; i < SketchFormat::kStepGroups; i += kLanes) {
      const VF32 scale = F16Row::Load(SketchFormat::Scales(plane), i);
      hn::Store(hn::Mul(scale, hn::Set(F32(), 1.0f / 256)), F32(), units.values + i);
    }
  }
  // Those of channels [i, i + kLanes).
  HWY_INLINE VF32 Load(const std::byte* steps, const Units& units, size_t i) const {
    const hn::Rebind<uint8_t, F32> u8;
    const hn::Rebind<int32_t, F32> i32;
    const auto bytes = hn::LoadU(u8, reinterpret_cast<const uint8_t*>(steps) + i);
    const float* unit = units.values + (i >> group_shift_);
#if HWY_TARGET == HWY_SCALAR
    const VF32 of_lanes = hn::Set(F32(), *unit);
#else
    const VF32 of_lanes = hn::TableLookupLanes(hn::LoadU(F32(), unit), groups_);
#endif
    return hn::Mul(hn::ConvertTo(F32(), hn::PromoteTo(i32, bytes)), of_lanes);
  }

 private:
#if HWY_TARGET == HWY_SCALAR
  using Groups = int;
  static Groups GroupsOfLanes(int /*group_shift*/) { return 0; }
#else
  using Groups = decltype(hn::IndicesFromVec(F32(), hn::Zero(hn::RebindToSigned<F32>())));
  static HWY_INLINE Groups GroupsOfLanes(int group_shift) {
    const hn::RebindToSigned<F32> i32;
    return hn::IndicesFromVec(F32(), hn::ShiftRightSame(hn::Iota(i32, 0), group_shift));
  }
#endif

  int group_shift_;
  Groups groups_;
};

// units[r] for four heads, of which kHeads are used, such that no product q_c·step_c of a head has
// more than 127 of them: by largest_q[r][group]·scale[group], as a group's scale is more than its
// largest step.
template <size_t kHeads>
HWY_INLINE void StoreFactorUnits(const std::byte* plane, const float* largest_q, float* units) {
  const F32 f32;
  VF32 bounds[kMaxHeadBlock];
  HWY_UNROLL(4)
  for (VF32& bound : bounds) bound = hn::Zero(f32);
  for (size_t i = 0; i < SketchFormat::kStepGroups; i += kLanes) {
    const VF32 scale = F16Row::Load(SketchFormat::Scales(plane), i);
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) {
      const VF32 q = hn::LoadU(f32, largest_q + r * SketchFormat::kStepGroups + i);
      bounds[r] = hn::Max(bounds[r], hn::Mul(q, scale));
    }
  }
  float levels[kMaxHeadBlock];
  StoreReduced4(f32, bounds[0], bounds[1], bounds[2], bounds[3], MaxOp(), levels);
  // The bound is itself rounded, and of zeros there is a unit too: not so small that a query times
  // its inverse overflows.
  HWY_UNROLL(4)
  for (size_t r = 0; r < kMaxHeadBlock; ++r) {
    units[r] = std::max(levels[r] * (1.00001f / 127), 0x1p-60f);
  }
}

// A number plus this is rounded to a whole one, and if that is within ±127, the lowest byte of the
// sum holds it.
inline constexpr float kRounder = 0x1.8p23f;
// The same for the second lowest byte, to within a 256th more.
inline constexpr float kRounderOfSecond = 0x1.8p15f + 0.5f;

// What rounds the factors of one head, and the sum of them.
struct FactorRounder {
  HWY_INLINE void Set(float unit) {
    per_unit = hn::Set(F32(), 1 / unit);
    sum = hn::Zero(F32());
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
    numbers = _mm512_setzero_si512();
#endif
  }
  // Partial sums of what was stored.
  HWY_INLINE VF32 Sum() const {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
    return hn::Add(VF32{_mm512_cvtepi32_ps(numbers)}, sum);
#else
    return sum;
#endif
  }

  VF32 per_unit;
  VF32 sum;
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  __m512i numbers;
#endif
};

// Stores q·step in whole units for kLanes channels.
HWY_INLINE void StoreRounded(VF32 q, VF32 step, FactorRounder& rounder, int8_t* to) {
  const VF32 lowest = hn::Set(F32(), kRounder);
  const VF32 rounded = hn::MulAdd(hn::Mul(q, rounder.per_unit), step, lowest);
  rounder.sum = hn::Add(rounder.sum, hn::Sub(rounded, lowest));
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_cvtepi32_epi8(_mm512_castps_si512(rounded.raw)));
#else
  const hn::RebindToSigned<F32> i32;
  const hn::Rebind<int8_t, F32> i8;
  const auto numbers = hn::Sub(hn::BitCast(i32, rounded), hn::BitCast(i32, lowest));
  hn::StoreU(hn::DemoteTo(i8, numbers), i8, to);
#endif
}

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
// Byte i of each of four quarters, one after the other.
struct QuarterBytes {
  constexpr QuarterBytes() {
    for (int i = 0; i < 64; ++i) places[i] = static_cast<uint8_t>(i % 16 * 4 + i / 16);
  }
  alignas(64) uint8_t places[64] = {};
};
inline constexpr QuarterBytes kQuarterBytes;
#endif

// The same for 4·kLanes channels.
HWY_INLINE void StoreFourRounded(const VF32 (&q)[4], const VF32 (&step)[4], FactorRounder& rounder,
                                 int8_t* to) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  // A byte of each vector becomes one lane, then bytes are put in order: narrowing instructions
  // would take twice the time.
  constexpr int kFirstWhereMaskElseSecond = 0xca;
  const auto rounded = [&](size_t j, float to_byte) HWY_ATTR {
    const VF32 numbers = hn::Mul(q[j], rounder.per_unit);
    return _mm512_castps_si512(hn::MulAdd(numbers, step[j], hn::Set(F32(), to_byte)).raw);
  };
  const auto pair = [&](size_t j) HWY_ATTR {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0xff), rounded(j, kRounder),
                                     rounded(j + 1, kRounderOfSecond), kFirstWhereMaskElseSecond);
  };
  const __m512i four =
      _mm512_ternarylogic_epi32(_mm512_set1_epi32(0xffff), pair(0), _mm512_slli_epi32(pair(2), 16),
                                kFirstWhereMaskElseSecond);
#if HWY_TARGET == HWY_AVX3_DL
  const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(kQuarterBytes.places), four);
  rounder.numbers = AddByteProducts(rounder.numbers, _mm512_set1_epi8(1), bytes);
#else
  // Within each 128 bits, then the parts of these.
  const __m512i places =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_shuffle_epi8(four, places));
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes);
  rounder.numbers =
      _mm512_add_epi32(rounder.numbers, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
  _mm512_storeu_si512(to, bytes);
#else
  HWY_UNROLL(4)
  for (size_t j = 0; j < 4; ++j) StoreRounded(q[j], step[j], rounder, to + j * kLanes);
#endif
}

// sums[r * stride + lane] = Σ_row code[lane][row]·factors[r * factor_stride + row] for one group of
// 16 lanes.
template <int kBits, size_t kHeads>
HWY_INLINE void FloatProducts(const std::byte* codes, size_t n_lines, const float* factors,
                              size_t factor_stride, float* sums, size_t stride) {
  const F32 f32;
  const hn::RebindToSigned<F32> i32;
  const auto mask = hn::Set(i32, (1 << kBits) - 1);
  for (size_t lane = 0; lane < 16; lane += kLanes) {
    VF32 acc[kHeads];
    HWY_UNROLL(4)
    for (VF32& a : acc) a = hn::Zero(f32);
    size_t row = 0;
    for (size_t line = 0; line < n_lines; ++line) {
      const auto four = hn::LoadU(i32, reinterpret_cast<const int32_t*>(codes + line * 64) + lane);
      for (int plane = 0; plane < 8 / kBits; ++plane) {
        for (int j = 0; j < 4; ++j, ++row) {
          const auto code = hn::And(hn::ShiftRightSame(four, 8 * j + plane * kBits), mask);
          const VF32 value = hn::ConvertTo(f32, code);
          HWY_UNROLL(4)
          for (size_t r = 0; r < kHeads; ++r) {
            acc[r] = hn::MulAdd(hn::Set(f32, factors[r * factor_stride + row]), value, acc[r]);
          }
        }
      }
    }
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) hn::StoreU(acc[r], f32, sums + r * stride + lane);
  }
}

// Codes of that many bits can be multiplied as integers here.
template <int kBits>
inline constexpr bool kHasByteProducts = kBits <= 4 &&
                                         (HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 ||
                                          HWY_TARGET == HWY_AVX2);

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

HWY_INLINE int32_t FourBytes(const void* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof(four));
  return four;
}

// Calls store(r, g * 16 + lane, sums of some lanes from `lane` on) with Σ_row
// code[g][lane][row]·factors[r * factor_stride + row] for kGroups groups of 16 lanes, whose lines
// lie `group_bytes` apart; `n_lines` lines a group, each of 4·8/kBits rows. Factors are int8_t
// within ±127 or uint8_t. For each line one of `ahead` is prefetched, or one a group where few
// heads leave little other work to spread them over.
#if HWY_TARGET == HWY_AVX3_DL
template <int kBits, size_t kHeads, size_t kGroups, class Factor, class Store>
HWY_INLINE void ByteProducts(const std::byte* codes, size_t n_lines, size_t group_bytes,
                             const Factor* factors, size_t factor_stride, LinesAhead& ahead,
                             Store store) {
  constexpr int kPlanesOfLine = 8 / kBits;
  // The upper of two codes is as good sixteen times as large, which saves the shift, where it is
  // the unsigned factor of the product.
  constexpr bool kUnshifted = kBits == 4 && std::is_signed_v<Factor>;
  constexpr size_t kSums = kHeads * kGroups;
  const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
  const __m512i upper_mask = _mm512_set1_epi8(static_cast<char>(0xf0));
  __m512i acc[kSums];
  __m512i upper[kUnshifted ? kSums : 1];
  HWY_UNROLL(8)
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  HWY_UNROLL(8)
  for (__m512i& a : upper) a = _mm512_setzero_si512();
  for (size_t line = 0; line < n_lines; ++line) {
    __m512i rest[kGroups];
    HWY_UNROLL(2)
    for (size_t g = 0; g < kGroups; ++g) {
      if (g == 0 || kHeads < 3) ahead.Prefetch();
      rest[g] = _mm512_loadu_si512(codes + g * group_bytes + line * 64);
    }
    HWY_UNROLL(4)
    for (int plane = 0; plane < kPlanesOfLine; ++plane) {
      const bool shifted = !kUnshifted || plane == 0;
      __m512i code[kGroups];
      HWY_UNROLL(2)
      for (size_t g = 0; g < kGroups; ++g) {
        code[g] = _mm512_and_si512(rest[g], shifted ? mask : upper_mask);
        if (!kUnshifted) rest[g] = _mm512_srli_epi16(rest[g], kBits);
      }
      HWY_UNROLL(4)
      for (size_t r = 0; r < kHeads; ++r) {
        const __m512i factor = _mm512_set1_epi32(
            FourBytes(factors + r * factor_stride + (line * kPlanesOfLine + plane) * 4));
        HWY_UNROLL(2)
        for (size_t g = 0; g < kGroups; ++g) {
          __m512i& sum = shifted ? acc[r * kGroups + g] : upper[r * kGroups + g];
          sum = std::is_signed_v<Factor> ? AddByteProducts(sum, code[g], factor)
                                         : AddByteProducts(sum, factor, code[g]);
        }
      }
    }
  }
  HWY_UNROLL(8)
  for (size_t a = 0; a < kSums; ++a) {
    if (kUnshifted) acc[a] = _mm512_add_epi32(acc[a], _mm512_srai_epi32(upper[a], 4));
    store(a / kGroups, a % kGroups * 16, hn::Vec512<int32_t>{acc[a]});
  }
}
#else
// Pairs of products are summed in 16 bits: at most 2·15·127 each, eight of which fit, or 2·15·255,
// four of which do.
template <int kBits, size_t kHeads, size_t kGroups, class Factor, class Store>
HWY_INLINE void ByteProducts(const std::byte* codes, size_t n_lines, size_t group_bytes,
                             const Factor* factors, size_t factor_stride, LinesAhead& ahead,
                             Store store) {
  constexpr int kPlanesOfLine = 8 / kBits;
  constexpr size_t kProductsOfSum = std::is_signed_v<Factor> ? 8 : 4;
  constexpr size_t kLinesOfSum = kProductsOfSum / kPlanesOfLine;
  const __m256i mask = _mm256_set1_epi8((1 << kBits) - 1);
  const __m256i ones = _mm256_set1_epi16(1);
  for (size_t half = 0; half < 2 * kGroups; ++half) {
    const std::byte* from = codes + half / 2 * group_bytes + half % 2 * 32;
    __m256i acc[kHeads];
    HWY_UNROLL(4)
    for (__m256i& a : acc) a = _mm256_setzero_si256();
    for (size_t line = 0; line < n_lines;) {
      __m256i pairs[kHeads];
      HWY_UNROLL(4)
      for (__m256i& a : pairs) a = _mm256_setzero_si256();
      const size_t end = line + kLinesOfSum < n_lines ? line + kLinesOfSum : n_lines;
      for (; line < end; ++line) {
        if (half % 2 == 0) ahead.Prefetch();
        __m256i rest = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + line * 64));
        HWY_UNROLL(4)
        for (int plane = 0; plane < kPlanesOfLine; ++plane) {
          const __m256i code = _mm256_and_si256(rest, mask);
          rest = _mm256_srli_epi16(rest, kBits);
          HWY_UNROLL(4)
          for (size_t r = 0; r < kHeads; ++r) {
            const __m256i factor = _mm256_set1_epi32(
                FourBytes(factors + r * factor_stride + (line * kPlanesOfLine + plane) * 4));
            pairs[r] = _mm256_add_epi16(pairs[r], std::is_signed_v<Factor>
                                                      ? _mm256_maddubs_epi16(code, factor)
                                                      : _mm256_maddubs_epi16(factor, code));
          }
        }
      }
      HWY_UNROLL(4)
      for (size_t r = 0; r < kHeads; ++r) {
        acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(pairs[r], ones));
      }
    }
    HWY_UNROLL(4)
    for (size_t r = 0; r < kHeads; ++r) {
      store(r, half * 8, hn::Vec256<int32_t>{acc[r]});
    }
  }
}
#endif

#endif  // x86 with byte products

}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
