// Attention over tokens that are not read, from the low-bit copies of their keys and values: the
// residual estimate whose values are resolved by token.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"
#include "ops/decode_attention.h"
#include "ops/page_scan.h"

namespace winnow {

// What is estimated of one KV head.
struct EstimatedPages {
  std::span<const int32_t> pages;     // ascending, below the masses' n_pages
  const float* shares = nullptr;      // [R, stride], from PageShares
  const float* log_totals = nullptr;  // [R], likewise
};

struct SketchValuesQuery {
  PagedKv kv;                             // its layout has a sketch of the values
  PageMasses masses;                      // from SketchScan, with weights
  std::span<const EstimatedPages> heads;  // [K]
  float* out = nullptr;                   // [H, D]: Σ mass·v̂ over Σ mass
  float* log_mass = nullptr;              // [H]
};

struct SketchValuesWorkspace {
  AlignedBuffer<float> partials;
  AlignedBuffer<int64_t> first_task;
  AlignedBuffer<int32_t> pending;
};

// Writes the attention state of every query's estimated pages. A page's weights are multiplied with
// its value codes and normalised by their own sum, so that its mass is exactly that of its share.
// Runs of pages are summed in order: a result does not depend on the number of threads. No page
// gives out = 0 and log_mass = -inf; NaN in, NaN out.
void SketchValues(ThreadPool& pool, std::span<const SketchValuesQuery> queries, int query_heads,
                  int bits, SketchValuesWorkspace& workspace, int64_t* bytes_read);

}  // namespace winnow
