#include "ops/kv_store.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "ops/kv_store_cpu.h"

namespace winnow {

void StoreKv(SequenceKv* kv, int layer, int64_t first, TensorView<const float, 3> k,
             TensorView<const float, 3> v) {
  const PageLayout& layout = *kv->View(layer).layout;
  const int64_t n = k.shape[0];
  WINNOW_CHECK(k.shape == v.shape && k.shape[1] == layout.kv_heads && k.shape[2] == layout.head_dim,
               "keys [{}, {}, {}], values [{}, {}, {}], layout [{}, {}]", n, k.shape[1], k.shape[2],
               v.shape[0], v.shape[1], v.shape[2], layout.kv_heads, layout.head_dim);
  WINNOW_CHECK(first >= 0 && first + n <= kv->n_tokens(layer), "tokens [{}, {}) of {}", first,
               first + n, kv->n_tokens(layer));

  std::byte* page = nullptr;
  for (int64_t t = 0; t < n; ++t) {
    const int64_t slot = (first + t) % layout.slots;
    if (page == nullptr || slot == 0) page = kv->WritablePage(layer, first + t);
    const size_t row_offset = static_cast<size_t>(slot) * layout.row_bytes;
    const float* key = k.row(t);
    const float* value = v.row(t);
    for (int head = 0; head < layout.kv_heads; ++head) {
      StoreRowCpu(layout.dtype, key, layout.head_dim, page + layout.KeyOffset(head) + row_offset);
      StoreRowCpu(layout.dtype, value, layout.head_dim,
                  page + layout.ValueOffset(head) + row_offset);
      key += layout.head_dim;
      value += layout.head_dim;
    }
  }
}

void LoadKv(const PagedKv& kv, int head, int64_t token, float* k, float* v) {
  const PageLayout& layout = *kv.layout;
  WINNOW_CHECK(0 <= head && head < layout.kv_heads, "KV head {} of {}", head, layout.kv_heads);
  WINNOW_CHECK(0 <= token && token < kv.n_tokens, "token {} of {}", token, kv.n_tokens);
  const int64_t page = token / layout.slots;
  WINNOW_CHECK(kv.pages[page] != kNoPage, "token {} was released", token);
  const size_t row_offset = static_cast<size_t>(token % layout.slots) * layout.row_bytes;
  LoadRowCpu(layout.dtype, kv.Keys(page, head) + row_offset, layout.head_dim, k);
  LoadRowCpu(layout.dtype, kv.Values(page, head) + row_offset, layout.head_dim, v);
}

std::optional<KvPlace> FindNotFinite(const SequenceKv& kv) {
  const PageLayout& layout = kv.pool().layout();
  std::vector<float> rows(2 * static_cast<size_t>(layout.head_dim));
  for (int layer = 0; layer < kv.n_layers(); ++layer) {
    const PagedKv view = kv.View(layer);
    for (int64_t token = kv.first_resident(layer); token < view.n_tokens; ++token) {
      for (int head = 0; head < layout.kv_heads; ++head) {
        LoadKv(view, head, token, rows.data(), rows.data() + layout.head_dim);
        if (!std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); })) {
          return KvPlace{layer, token, head};
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace winnow
