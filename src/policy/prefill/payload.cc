#include "policy/prefill/payload.h"

#include <numeric>

#include "core/check.h"

namespace winnow {

int64_t PayloadByGroup(const KvUnit& unit, TensorView<const int64_t, 2> pages) {
  const std::span<const int64_t> all = pages.span();
  return unit.page_bytes() * std::accumulate(all.begin(), all.end(), int64_t{0});
}

int64_t PayloadByLayer(const KvUnit& unit, int64_t kv_heads, std::span<const int64_t> pages) {
  return unit.page_bytes() * kv_heads * std::accumulate(pages.begin(), pages.end(), int64_t{0});
}

int64_t DensePayload(const KvUnit& unit, int64_t layers, int64_t kv_heads, int64_t n_tokens) {
  return 2 * unit.element_bytes * unit.head_dim * layers * kv_heads * n_tokens;
}

void PagesAfterPruning(int64_t page_tokens, int64_t n_tokens, int64_t kept, int64_t accepted,
                       bool drop_below, std::span<int64_t> pages) {
  WINNOW_CHECK(page_tokens >= 1 && 0 <= kept && kept <= n_tokens && accepted >= 0,
               "{} of {} tokens kept at layer {}", kept, n_tokens, accepted);
  for (int64_t layer = 0; layer < std::ssize(pages); ++layer) {
    const int64_t tokens = layer < accepted && !drop_below ? n_tokens : kept;
    pages[layer] = (tokens + page_tokens - 1) / page_tokens;
  }
}

}  // namespace winnow
