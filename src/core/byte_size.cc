#include "core/byte_size.h"

#include <fmt/format.h>

#include <array>

namespace winnow {
namespace {

// With `extra_digits` behind the usual ones.
std::string Format(int64_t bytes, int extra_digits) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr double kRoundsToNext = 1023.5;
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= kRoundsToNext && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int digits = unit == 0 ? 0 : (value < 10 ? 1 : 0) + extra_digits;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

}  // namespace

std::string FormatBytes(int64_t bytes) { return Format(bytes, 0); }

std::pair<std::string, std::string> FormatBytesApart(int64_t a, int64_t b) {
  constexpr int kMostDigits = 3;
  for (int extra = 0; extra < kMostDigits; ++extra) {
    std::pair<std::string, std::string> both(Format(a, extra), Format(b, extra));
    if (a == b || both.first != both.second) return both;
  }
  return {fmt::format("{} bytes", a), fmt::format("{} bytes", b)};
}

}  // namespace winnow
