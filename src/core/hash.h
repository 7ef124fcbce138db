// A 128-bit content hash (XXH3), for pages of the prefix cache and for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace winnow {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
  bool operator<(const Hash128& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
  std::string Hex() const;  // 32 lower-case digits
};

// Hash of `bytes`, chained after `seed` so that HashBytes(b, HashBytes(a)) identifies the pair.
Hash128 HashBytes(std::span<const std::byte> bytes, const Hash128& seed = {});

}  // namespace winnow

template <>
struct std::hash<winnow::Hash128> {
  size_t operator()(const winnow::Hash128& h) const noexcept { return h.low; }
};
