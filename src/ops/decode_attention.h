// Dense attention of one new token a sequence over paged keys and values (flash decoding on the
// CPU).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/account.h"
#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"

namespace winnow {

struct DecodeQuery {
  const float* q = nullptr;  // [H, D], not yet scaled
  PagedKv kv;                // keys and values of one layer of one sequence, K heads
  // KV heads [first_head, first_head + n_heads) only: q, out and log_mass then hold just their
  // query heads. 0 heads: all. So each KV head may have pages of its own.
  int first_head = 0;
  int n_heads = 0;
  int64_t begin = 0;  // attends to tokens [begin, end) of kv; begin > 0 for local layers
  int64_t end = 0;
  float* out = nullptr;       // [H, D]
  float* log_mass = nullptr;  // [H], or null
};

// KV heads of a query that may be restricted to some of them.
template <class Query>
int HeadsOf(const Query& query) {
  return query.n_heads == 0 ? query.kv.layout->kv_heads : query.n_heads;
}

// Writes scale·q to rows of `stride` floats, the rest of each zero: q [n_rows, dim], to [n_rows,
// stride].
inline void ScaleQueryRows(const float* q, int64_t n_rows, int64_t dim, int64_t stride, float scale,
                           float* to) {
  for (int64_t row = 0; row < n_rows; ++row, q += dim, to += stride) {
    for (int64_t c = 0; c < dim; ++c) to[c] = scale * q[c];
    std::fill(to + dim, to + stride, 0.0f);
  }
}

struct DecodeAttentionParams {
  int query_heads = 0;  // H, a multiple of the layout's K
  float scale = 1.0f;   // multiplies q·k
};

// Scratch that a caller keeps between calls.
struct DecodeWorkspace {
  AlignedBuffer<float> q;             // scaled queries
  AlignedBuffer<float> states;        // partial states of the splits
  AlignedBuffer<int64_t> first_task;  // of each query
  AlignedBuffer<int32_t> pending;     // splits that each (query, KV head) still waits for
};

// Writes out and log_mass of every query. A KV row is read and converted once for all R = H/K query
// heads that share it (eight at a time). Work is split over KV heads and fixed runs of pages, so a
// result depends neither on the number of threads nor on the other queries. f32 accumulation; the
// caller checked shapes; an empty range gives out = 0 and log_mass = -inf.
void DecodeAttention(ThreadPool& pool, std::span<const DecodeQuery> queries,
                     const DecodeAttentionParams& params, DecodeWorkspace& workspace,
                     AttentionAccount* account);

// A bound of |log_mass − log Σ e^{scale·q·k}| for what DecodeAttention wrote, alone or merged from
// a few calls, over `n_tokens` tokens of head dimension `head_dim` with Σ_c |scale·q_c·k_c| <=
// `magnitude` each.
double DecodeLogMassError(int64_t head_dim, int64_t n_tokens, double magnitude);
// Of ‖out − Σ e^{scale·q·k}·v / Σ e^{scale·q·k}‖, in units of the largest ‖v‖ of those tokens, from
// that bound.
double DecodeOutputError(int64_t n_tokens, double log_mass_error);

}  // namespace winnow
