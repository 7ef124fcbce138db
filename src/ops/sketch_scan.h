// Scores pages by a low-bit copy of their keys: the first stage of sparse decode.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"
#include "ops/decode_attention.h"

namespace winnow {

// Estimated masses of the full pages of one layer for one token's query heads. A page's mass is
// sum·e^max, its largest score kept apart so that nothing overflows and no logarithm is taken.
struct PageMasses {
  int64_t n_pages = 0;   // the first ones of the layer, all full
  int64_t stride = 0;    // floats from one query head to the next, >= n_pages
  float* max = nullptr;  // [H, stride]
  float* sum = nullptr;  // [H, stride]
  // Weights of the tokens in their page, e^(score − max) in steps of 1/127: [H, stride·G]; null if
  // not wanted.
  uint8_t* weights = nullptr;
};

struct SketchScanQuery {
  const float* q = nullptr;  // [H, D], not yet scaled
  PagedKv kv;                // its layout has a sketch of the keys
  PageMasses masses;
};

struct SketchWorkspace {
  AlignedBuffer<float> q;  // scaled queries
  AlignedBuffer<int64_t> first_task;
};

// q·k̂ of every token of every query's pages, summed to masses. A key sketch of 4 or 2 bits is
// multiplied in integers where the processor has byte products: the query, times the steps, is
// rounded to 127 levels a page and head, an error below a tenth of the sketch's own. NaN in, NaN
// masses out. Adds the bytes that it reads to `bytes_read`, if given.
void SketchScan(ThreadPool& pool, std::span<const SketchScanQuery> queries,
                const DecodeAttentionParams& params, int bits, SketchWorkspace& workspace,
                int64_t* bytes_read);

}  // namespace winnow
