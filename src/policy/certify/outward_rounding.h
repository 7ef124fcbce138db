// Rounding of doubles to the floats that summaries are stored as, in the direction that keeps a
// bound true.
#pragma once

#include <cstdint>

namespace winnow {

enum class FloatFormat : uint8_t { kF32, kF16 };

// The smallest value of `format` that is >= x, and the largest that is <= x, as doubles. Beyond the
// format's range the outward side is infinite. NaN and infinities stay.
double RoundUp(double x, FloatFormat format);
double RoundDown(double x, FloatFormat format);
// Nearest, ties to even; infinite beyond the range, as the processor rounds.
double RoundNearest(double x, FloatFormat format);

// How far `RoundNearest` can have moved what is now `rounded`: half the spacing there; infinite if
// `rounded` is not finite.
double NearestError(double rounded, FloatFormat format);

// Bits of a value that is one of IEEE half's, such as a result of the functions above, and back.
uint16_t HalfBits(double half);
double HalfValue(uint16_t bits);

}  // namespace winnow
