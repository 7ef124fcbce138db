// Products of a sketch's codes (ops/page_planes.h: lines of 16 lanes of four bytes, with further
// codes in the bits above) with factors, summed lane by lane: with bytes to 32-bit integers, for
// which AVX-512 VNNI and AVX2 have instructions, and with floats anywhere.
//
// Per-target include guard: foreach_target.h compiles this file once for each instruction set.
#if defined(WINNOW_OPS_BYTE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_BYTE_PRODUCTS_INL_H_
#undef WINNOW_OPS_BYTE_PRODUCTS_INL_H_
#else
#define WINNOW_OPS_BYTE_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

// Stores the nearest integers of values in [-127, 127] as bytes and returns them.
HWY_INLINE VF32 StoreRoundedToBytes(VF32 values, int8_t* to) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  const __m512i rounded = _mm512_cvtps_epi32(values.raw);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(rounded));
  return VF32{_mm512_cvtepi32_ps(rounded)};
#else
  const hn::Rebind<int8_t, F32> i8;
  const auto rounded = hn::NearestInt(values);
  hn::StoreU(hn::DemoteTo(i8, rounded), i8, to);
  return hn::ConvertTo(F32(), rounded);
#endif
}

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

// The larger magnitude, without sign.
HWY_INLINE VF32 MaxMagnitude(VF32 a, VF32 b) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  constexpr int kLargerMagnitudeWithoutSign = 0b1011;
  return VF32{_mm512_range_ps(a.raw, b.raw, kLargerMagnitudeWithoutSign)};
#else
  return hn::Max(a, hn::Abs(b));
#endif
}

// Stores the nearest integers of factor·values[0..n) (in [-127, 127]; n a multiple of 16) as bytes
// and returns partial sums of them.
HWY_INLINE VF32 StoreRoundedRow(const float* values, VF32 factor, size_t n, int8_t* to) {
  const F32 f32;
  size_t i = 0;
  VF32 sum = hn::Zero(f32);
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  __m512i total = _mm512_setzero_si512();
  // Packing works within blocks of 128 bits; then the blocks' parts are put in order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (; i + 64 <= n; i += 64) {
    __m512i part[4];
    HWY_UNROLL(4)
    for (size_t j = 0; j < 4; ++j) {
      part[j] = _mm512_cvtps_epi32(hn::Mul(factor, hn::LoadU(f32, values + i + 16 * j)).raw);
#if HWY_TARGET == HWY_AVX3
      total = _mm512_add_epi32(total, part[j]);
#endif
    }
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(part[0], part[1]),
                                             _mm512_packs_epi32(part[2], part[3]));
#if HWY_TARGET == HWY_AVX3_DL
    total = AddByteProducts(total, _mm512_set1_epi8(1), bytes);
#endif
    _mm512_storeu_si512(to + i, _mm512_permutexvar_epi32(order, bytes));
  }
  sum = VF32{_mm512_cvtepi32_ps(total)};
#endif
  for (; i < n; i += kLanes) {
    sum = hn::Add(sum, StoreRoundedToBytes(hn::Mul(factor, hn::LoadU(f32, values + i)), to + i));
  }
  return sum;
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
