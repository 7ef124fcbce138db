// Bytes of the keys and values that a retained set occupies or that are sent on, by the unit in
// which memory is released (EntroPrefill 7 and 8.2). Without metadata, quantisation scales,
// allocator reserve or transport headers: whoever reports these names them apart.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor_view.h"

namespace winnow {

// One KV head's slot of a page.
struct KvUnit {
  int64_t element_bytes = 2;  // e
  int64_t head_dim = 0;       // d
  int64_t page_tokens = 1;    // b

  int64_t page_bytes() const { return 2 * element_bytes * head_dim * page_tokens; }
};

// Pages allocated for each KV head by itself: 2·e·d·b·Σ K_lg. pages [L, G].
int64_t PayloadByGroup(const KvUnit& unit, TensorView<const int64_t, 2> pages);

// A page holds all G heads of a layer (Winnow's): 2·e·d·b·G·Σ U_l. pages [L], U_l the union of what
// the heads chose.
int64_t PayloadByLayer(const KvUnit& unit, int64_t kv_heads, std::span<const int64_t> pages);

// A dense cache of so many tokens in every layer, sent without pages: 2·e·L·G·d·T'.
int64_t DensePayload(const KvUnit& unit, int64_t layers, int64_t kv_heads, int64_t n_tokens);

// What pruning at layer `accepted` (counted from 1; 0: before the first) leaves in pages, by
// layer: `kept` tokens above it, and up to it too if what was pruned is dropped there as well
// (pruned_kv=drop), `n_tokens` otherwise. Compaction leaves no holes: ⌈tokens/b⌉ pages. pages [L].
void PagesAfterPruning(int64_t page_tokens, int64_t n_tokens, int64_t kept, int64_t accepted,
                       bool drop_below, std::span<int64_t> pages);

}  // namespace winnow
