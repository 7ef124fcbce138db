// Exact scores of single tokens, and sums of single tokens' values with weights that a caller
// chose: attention in two halves, for what decides in between.
#pragma once

#include <cstdint>

#include "kv/sequence_kv.h"

namespace winnow {

// The pages of one KV head, read in place.
struct TokenRows {
  const PagedKv* kv = nullptr;
  int head = 0;         // KV head
  int group_heads = 0;  // R
};

// Writes scores [R, stride >= n_tokens] of all tokens, for q [R, D], already scaled. f32.
void ScoreTokens(const TokenRows& rows, const float* q, float* scores, int64_t stride);

// Adds Σ_t weights[r, t]·v_t to out [R, D], f32; weights [R, stride >= n_tokens]. Values of tokens
// whose weights are all zero are not read. Returns the number of tokens read.
int64_t AddWeightedTokens(const TokenRows& rows, const float* weights, int64_t stride, float* out);

}  // namespace winnow
