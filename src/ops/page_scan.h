// What every scan over pages does: scale the queries, cut the pages into tasks, run them on all
// threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/check.h"
#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"
#include "ops/decode_attention.h"

namespace winnow {

// Estimated masses of full pages of one layer for one token's query heads. A page's mass is
// sum·e^max, its largest score kept apart so that nothing overflows and no logarithm is taken.
struct PageMasses {
  int64_t n_pages = 0;   // the first ones of the layer, all full
  int64_t stride = 0;    // floats from one query head to the next, >= n_pages
  float* max = nullptr;  // [H, stride]
  float* sum = nullptr;  // [H, stride]
  // Weights of the tokens in their page, e^(score − max) in steps of 1/255: [H, stride·G]; null if
  // not wanted.
  uint8_t* weights = nullptr;

  // From query head `head` on.
  PageMasses From(int64_t head, int slots) const {
    PageMasses masses = *this;
    masses.max += head * stride;
    masses.sum += head * stride;
    if (weights != nullptr) masses.weights += head * stride * slots;
    return masses;
  }
};

// As in DecodeQuery, KV heads may have pages of their own.
struct PageScanQuery {
  const float* q = nullptr;  // [H, D], not yet scaled
  PagedKv kv;                // its layout has the planes that are scanned
  PageMasses masses;
  int first_head = 0;
  int n_heads = 0;  // 0: all
};

// One KV head over a run of pages.
struct PageScanTask {
  const PagedKv* kv = nullptr;
  int head = 0;  // KV head
  int64_t begin_page = 0;
  int64_t end_page = 0;
  int group_heads = 0;       // R
  const float* q = nullptr;  // [R, P], scaled, padding zero
  PageMasses masses;         // of this KV head's R query heads
};

struct PageScanWorkspace {
  AlignedBuffer<float> q;  // scaled queries
  AlignedBuffer<int64_t> first_task;
};

// Calls run(task) for runs of kPagesPerScanTask pages of every query and KV head. Returns the pages
// scanned, summed over KV heads.
inline constexpr int64_t kPagesPerScanTask = 16;  // a few µs, so that two threads end together

template <class RunTask>
int64_t ScanPages(ThreadPool& pool, std::span<const PageScanQuery> queries,
                  const DecodeAttentionParams& params, PageScanWorkspace& workspace, RunTask run) {
  if (queries.empty()) return 0;
  const PageLayout& layout = *queries[0].kv.layout;
  const int64_t dim = layout.padded_dim;
  const int group = params.query_heads / layout.kv_heads;
  WINNOW_CHECK(group > 0 && group * layout.kv_heads == params.query_heads,
               "{} query heads, {} KV heads", params.query_heads, layout.kv_heads);
  const auto runs_of = [](const PageScanQuery& query) {
    return (query.masses.n_pages + kPagesPerScanTask - 1) / kPagesPerScanTask;
  };
  const auto n_queries = static_cast<int64_t>(queries.size());
  workspace.q.Resize(n_queries * params.query_heads * dim);
  workspace.first_task.Resize(n_queries + 1);
  int64_t* first_task = workspace.first_task.data();
  first_task[0] = 0;
  int64_t n_pages = 0;
  for (int64_t i = 0; i < n_queries; ++i) {
    const PageScanQuery& query = queries[i];
    WINNOW_CHECK(*query.kv.layout == layout && query.masses.stride >= query.masses.n_pages &&
                 query.masses.n_pages * layout.slots <= query.kv.n_tokens);
    const int n_heads = HeadsOf(query);
    WINNOW_CHECK(0 <= query.first_head && query.first_head + n_heads <= layout.kv_heads);
    ScaleQueryRows(query.q, static_cast<int64_t>(n_heads) * group, layout.head_dim, dim,
                   params.scale, workspace.q.data() + i * params.query_heads * dim);
    first_task[i + 1] = first_task[i] + runs_of(query) * n_heads;
    n_pages += query.masses.n_pages * n_heads;
  }
  pool.ForEach(first_task[n_queries], [&](int64_t index, int /*thread*/) {
    const int64_t i = std::upper_bound(first_task, first_task + n_queries, index) - first_task - 1;
    const PageScanQuery& query = queries[i];
    const int64_t of_query = index - first_task[i];
    const int64_t head = of_query / runs_of(query);  // from the query's first
    const int64_t begin = of_query % runs_of(query) * kPagesPerScanTask;
    run(PageScanTask{.kv = &query.kv,
                     .head = query.first_head + static_cast<int>(head),
                     .begin_page = begin,
                     .end_page = std::min(begin + kPagesPerScanTask, query.masses.n_pages),
                     .group_heads = group,
                     .q = workspace.q.data() + (i * params.query_heads + head * group) * dim,
                     .masses = query.masses.From(head * group, layout.slots)});
  });
  return n_pages;
}

}  // namespace winnow
