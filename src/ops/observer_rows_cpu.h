// The CPU kernels behind ReadObserverRows: one KV head of one block of tokens.
#pragma once

#include <cstdint>
#include <span>

#include "ops/observer_rows.h"

namespace winnow {

// Tokens of a task, a multiple of a tile. Long enough to share a conversion of queries' cache lines
// among many keys, short enough that 7,000 tokens of three KV heads make 42 tasks.
inline constexpr int64_t kObserverBlockTokens = 512;
inline constexpr int64_t kObserverRowUnit = 16;  // lanes of the widest vector

// What the kernels share. A query head has P rows, U rounded up to kObserverRowUnit; rows past the
// last observer repeat it, so that they are finite exactly where it is, and count for nothing.
struct ObserverState {
  const ObserverRowsParams* params = nullptr;
  ObserverRows out;
  int64_t padded = 0;            // P
  float* q = nullptr;            // [H][P·D], in panels, scaled by scale·log2(e)
  float* begin = nullptr;        // [P]
  float* end = nullptr;          // [P]
  float* mean_weight = nullptr;  // [P]: 1 / proposal's observers, 0 for others
  // A token's weight in a row is factor·2^(score − max).
  float* max = nullptr;                   // [H, P]
  float* factor = nullptr;                // [H, P]
  float* block_max = nullptr;             // [blocks, H, P], of the scores
  float* block_sum = nullptr;             // [blocks, H, P], of 2^(score − block_max)
  double* block_heads = nullptr;          // [blocks, H, P]: mass of chunk_before in the block
  const int32_t* chunk_before = nullptr;  // [blocks]: the last chunk that began before, or -1

  int64_t group() const { return params->q.shape[1] / params->kv.layout->kv_heads; }
};

// Floats of scratch of a thread.
int64_t ObserverScratchFloats(int64_t head_dim);

// Packs the queries of query head `head`.
void PackObservers(const ObserverState& state, int64_t head);
// Fills block_max and block_sum of the rows of KV head `head`.
void SumObserverBlock(const ObserverState& state, int head, int64_t block,
                      std::span<float> scratch);
// Writes mean_attention of the block's tokens, adds to chunk_mass of chunks that begin in the
// block, and writes block_heads, for the rows of KV head `head`.
void ReadObserverBlock(const ObserverState& state, int head, int64_t block,
                       std::span<float> scratch);

}  // namespace winnow
