#include "core/hash.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace winnow {

std::string Hash128::Hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 HashBytes(std::span<const std::byte> bytes, const Hash128& seed) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const uint64_t prefix[2] = {seed.high, seed.low};
  XXH3_128bits_update(&state, prefix, sizeof(prefix));
  XXH3_128bits_update(&state, bytes.data(), bytes.size());
  const XXH128_hash_t h = XXH3_128bits_digest(&state);
  return {.high = h.high64, .low = h.low64};
}

}  // namespace winnow
