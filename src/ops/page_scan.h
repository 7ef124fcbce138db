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

// A run of pages with all KV heads of its query, whose planes lie side by side: read in this order
// they are one stream.
struct PageScanTask {
  int64_t query = 0;  // its index
  const PagedKv* kv = nullptr;
  int first_head = 0;  // KV head
  int n_heads = 0;
  int64_t begin_page = 0;
  int64_t end_page = 0;
  int group_heads = 0;       // R
  const float* q = nullptr;  // [n_heads, R, P], scaled, padding zero
  PageMasses masses;         // of the query's first query head on

  int64_t size() const { return (end_page - begin_page) * n_heads; }
};

// One KV head of one page: item i of a task, in the order of the planes.
struct PageScanItem {
  PageScanItem(const PageScanTask& task, int64_t i)
      : page(task.begin_page + i / task.n_heads), head(static_cast<int>(i % task.n_heads)) {}
  int64_t page;
  int head;  // from the task's first

  const std::byte* PlaneOf(const PageScanTask& task, Plane plane) const {
    return task.kv->PlaneOf(plane, page, task.first_head + head);
  }
  // Where the first of its R query heads stands in the masses; the next is a stride further.
  int64_t MassIndex(const PageScanTask& task) const {
    return static_cast<int64_t>(head) * task.group_heads * task.masses.stride + page;
  }
};

struct PageScanWorkspace {
  AlignedBuffer<float> q;          // scaled queries
  AlignedBuffer<float> largest_q;  // of a sketch scan: [queries, H, 16]
  AlignedBuffer<int64_t> first_task;
};

// Calls run(task) for runs of pages of every query. Returns the pages scanned, summed over KV
// heads.
//
// Long runs read memory as a stream, short ones let the threads end together: eight a thread, but
// of no less than a few µs and no more than what makes the stream.
inline constexpr int64_t kRunsPerThread = 8;
inline constexpr int64_t kMinItemsPerRun = 32;
inline constexpr int64_t kMaxItemsPerRun = 512;

// Before, prepare(i, rows, n_rows) is called for the scaled rows [n_rows, P] of each query.
template <class RunTask, class Prepare>
int64_t ScanPages(ThreadPool& pool, std::span<const PageScanQuery> queries,
                  const DecodeAttentionParams& params, PageScanWorkspace& workspace, RunTask run,
                  Prepare prepare) {
  if (queries.empty()) return 0;
  const PageLayout& layout = *queries[0].kv.layout;
  const int64_t dim = layout.padded_dim;
  const int group = params.query_heads / layout.kv_heads;
  WINNOW_CHECK(group > 0 && group * layout.kv_heads == params.query_heads,
               "{} query heads, {} KV heads", params.query_heads, layout.kv_heads);
  int64_t n_items = 0;
  for (const PageScanQuery& query : queries) n_items += query.masses.n_pages * HeadsOf(query);
  const int64_t run_items =
      std::clamp(n_items / (kRunsPerThread * pool.size()), kMinItemsPerRun, kMaxItemsPerRun);
  const auto pages_of_run = [run_items](const PageScanQuery& query) {
    return std::max<int64_t>(1, run_items / HeadsOf(query));
  };
  const auto n_queries = static_cast<int64_t>(queries.size());
  workspace.q.Resize(n_queries * params.query_heads * dim);
  workspace.first_task.Resize(n_queries + 1);
  int64_t* first_task = workspace.first_task.data();
  first_task[0] = 0;
  for (int64_t i = 0; i < n_queries; ++i) {
    const PageScanQuery& query = queries[i];
    WINNOW_CHECK(*query.kv.layout == layout && query.masses.stride >= query.masses.n_pages &&
                 query.masses.n_pages * layout.slots <= query.kv.n_tokens);
    const int n_heads = HeadsOf(query);
    WINNOW_CHECK(0 <= query.first_head && query.first_head + n_heads <= layout.kv_heads);
    const int64_t n_rows = static_cast<int64_t>(n_heads) * group;
    float* rows = workspace.q.data() + i * params.query_heads * dim;
    ScaleQueryRows(query.q, n_rows, layout.head_dim, dim, params.scale, rows);
    prepare(i, rows, n_rows);
    const int64_t run_pages = pages_of_run(query);
    first_task[i + 1] = first_task[i] + (query.masses.n_pages + run_pages - 1) / run_pages;
  }
  pool.ForEach(first_task[n_queries], [&](int64_t index, int /*thread*/) {
    const int64_t i = std::upper_bound(first_task, first_task + n_queries, index) - first_task - 1;
    const PageScanQuery& query = queries[i];
    const int64_t begin = (index - first_task[i]) * pages_of_run(query);
    run(PageScanTask{.query = i,
                     .kv = &query.kv,
                     .first_head = query.first_head,
                     .n_heads = HeadsOf(query),
                     .begin_page = begin,
                     .end_page = std::min(begin + pages_of_run(query), query.masses.n_pages),
                     .group_heads = group,
                     .q = workspace.q.data() + i * params.query_heads * dim,
                     .masses = query.masses});
  });
  return n_items;
}

}  // namespace winnow
