// What the observers of a prompt look at in one layer: a second small Q·Kᵀ of their rows alone,
// reduced to what prefill pruning asks, and what its removals change in their outputs.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"

namespace winnow {

// U observers, H query heads of K KV heads, T tokens of the layer, k chunks.
struct ObserverRowsParams {
  TensorView<const float, 3> q;  // [U, H, D], normed and rotated, not yet scaled
  PagedKv kv;                    // one layer
  // Observer u attends to tokens [begin[u], end[u]) of kv, [U] each, both non-decreasing, as in
  // PrefillAttention.
  std::span<const int64_t> begin;
  std::span<const int64_t> end;
  float scale = 1.0f;
  // [T]: the chunk of each token, -1 for protected ones; chunks come in order.
  std::span<const int32_t> chunk_of;
  int64_t n_chunks = 0;
  int64_t first_proposal = 0;  // the mean is over observers from this one on; below U
  // [U, H]: the log of each row's partition sum where the main pass has it
  // (PrefillAttentionParams::log_mass of the same queries), which saves half of the time; its
  // f32 rounding then is a relative error of all of the row's weights (below 1e-6 up to a log of
  // 16). Without data the sums are taken here.
  TensorView<const float, 2> log_mass;
};

// Attention rows are softmax(scale·q·k) over what the observer sees, elsewhere zero.
struct ObserverRows {
  // Each head's row averaged over the proposal's observers (EntroPrefill (2)).
  TensorView<float, 2> mean_attention;  // [H, T]
  // The row's sum over each chunk; head h's observer u is row h·U + u.
  TensorView<double, 2> chunk_mass;  // [H·U, k]
};

// Scratch: K·R·U·D floats of queries, 16 bytes of sums per row and 512 tokens, a tile of keys and
// scores a thread. Nothing grows with U·T: scores are computed a second time rather than kept,
// which for heads of 64 costs what writing and reading them would (and nothing with `log_mass`).
struct ObserverRowsWorkspace {
  AlignedBuffer<float> rows;          // packed queries, limits and sums of rows
  AlignedBuffer<float> block_sums;    // of each block of tokens and row: maximum and sum
  AlignedBuffer<double> block_heads;  // mass of the chunk that began before the block
  AlignedBuffer<float> scratch;       // of each thread
};

// Fills both tables and returns whether every row's sum is finite; a row with a score that is NaN
// or +inf is NaN in both. A row that sees nothing is zero. Each key is converted to f32 once for
// all rows of its KV head; f32 products in the order of PrefillAttention, f32 sums of up to 128
// weights, double above. The same bits for any number of threads. CHECKs shapes, ranges, and the
// order of chunks.
bool ReadObserverRows(ThreadPool& pool, const ObserverRowsParams& params, const ObserverRows& out,
                      ObserverRowsWorkspace& workspace);

// What a removal changes in the outputs o of the observers' rows, o_R being normalised over the
// retained tokens that the row sees.
struct ObserverOutputs {
  TensorView<double, 2> norm;    // [H, U]: ‖o‖
  TensorView<double, 2> change;  // [H, U]: ‖o − o_R‖
};

// For a report: a plain loop over rows that reads all keys and values, which must be resident
// (about 2.5 ms an observer at 7,000 tokens and 9 heads of 64), with 2·T floats of scratch a query
// head of a KV head and thread. `removed` [k] is nonzero for chunks that are removed. A row that
// retains no weight has o_R = 0.
void MeasureRemoval(ThreadPool& pool, const ObserverRowsParams& params,
                    std::span<const uint8_t> removed, const ObserverOutputs& out);

}  // namespace winnow
