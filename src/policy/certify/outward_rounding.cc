#include "policy/certify/outward_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Precision {
  int significand_bits;
  int min_exponent;  // of the spacing, that of the subnormals
  double largest;
};

Precision PrecisionOf(FloatFormat format) {
  if (format == FloatFormat::kF16) return {11, -24, 65504.0};
  return {24, -149, std::numeric_limits<float>::max()};
}

int SpacingExponent(double x, const Precision& precision) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::max(exponent - precision.significand_bits, precision.min_exponent);
}

// Scaling by a power of two is exact, so `to_integer` is the only rounding.
double Round(double x, FloatFormat format, double (*to_integer)(double)) {
  if (x == 0 || !std::isfinite(x)) return x;
  const Precision precision = PrecisionOf(format);
  const int exponent = SpacingExponent(x, precision);
  return std::ldexp(to_integer(std::ldexp(x, -exponent)), exponent);
}

}  // namespace

double RoundUp(double x, FloatFormat format) {
  const double largest = PrecisionOf(format).largest;
  const double up = Round(x, format, [](double v) { return std::ceil(v); });
  if (up > largest) return kInfinity;
  return std::isfinite(x) ? std::max(up, -largest) : x;
}

double RoundDown(double x, FloatFormat format) { return -RoundUp(-x, format); }

double RoundNearest(double x, FloatFormat format) {
  const double nearest = Round(x, format, [](double v) { return std::nearbyint(v); });
  return std::abs(nearest) > PrecisionOf(format).largest ? std::copysign(kInfinity, x) : nearest;
}

double NearestError(double rounded, FloatFormat format) {
  if (!std::isfinite(rounded)) return kInfinity;
  const Precision precision = PrecisionOf(format);
  // frexp calls the exponent of zero 0; the spacing there is that of the subnormals.
  const int exponent = rounded == 0 ? precision.min_exponent : SpacingExponent(rounded, precision);
  return std::ldexp(0.5, exponent);
}

uint16_t HalfBits(double half) {
  const auto sign = static_cast<uint16_t>(std::signbit(half) ? 0x8000 : 0);
  if (std::isnan(half)) return 0x7e00;
  const double magnitude = std::abs(half);
  if (std::isinf(magnitude)) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const auto significand = static_cast<uint16_t>(std::ldexp(fraction, 11)) & 0x3ff;
  return sign | static_cast<uint16_t>((exponent + 14) << 10) | static_cast<uint16_t>(significand);
}

double HalfValue(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int significand = bits & 0x3ff;
  double magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = significand == 0 ? kInfinity : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(significand, -24);
  } else {
    magnitude = std::ldexp(significand + 0x400, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace winnow
