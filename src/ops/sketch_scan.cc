#include "ops/sketch_scan.h"

#include <algorithm>

#include "core/check.h"
#include "ops/sketch_scan_cpu.h"

namespace winnow {
namespace {

// Pages of a task: a few µs of work, so that two threads end together.
constexpr int64_t kPagesPerTask = 16;

}  // namespace

void SketchScan(ThreadPool& pool, std::span<const SketchScanQuery> queries,
                const DecodeAttentionParams& params, int bits, SketchWorkspace& workspace,
                int64_t* bytes_read) {
  if (queries.empty()) return;
  const PageLayout& layout = *queries[0].kv.layout;
  const Plane plane = KeySketchPlane(bits);
  WINNOW_CHECK(layout.planes.Has(plane), "the pages have no sketch of {} bits", bits);
  const SketchFormat format(layout, bits);
  const auto dim = static_cast<int64_t>(format.dim);
  const int group = params.query_heads / layout.kv_heads;
  WINNOW_CHECK(group > 0 && group * layout.kv_heads == params.query_heads,
               "{} query heads, {} KV heads", params.query_heads, layout.kv_heads);

  const auto n_queries = static_cast<int64_t>(queries.size());
  workspace.q.Resize(n_queries * params.query_heads * dim);
  workspace.first_task.Resize(n_queries + 1);
  workspace.first_task[0] = 0;
  float* to = workspace.q.data();
  for (int64_t i = 0; i < n_queries; ++i) {
    const SketchScanQuery& query = queries[i];
    WINNOW_CHECK(*query.kv.layout == layout && query.masses.stride >= query.masses.n_pages &&
                 query.masses.n_pages * layout.slots <= query.kv.n_tokens);
    for (int64_t head = 0; head < params.query_heads; ++head, to += dim) {
      const float* from = query.q + head * layout.head_dim;
      for (int64_t c = 0; c < layout.head_dim; ++c) to[c] = params.scale * from[c];
      std::fill(to + layout.head_dim, to + dim, 0.0f);
    }
    const int64_t n_runs = (query.masses.n_pages + kPagesPerTask - 1) / kPagesPerTask;
    workspace.first_task[i + 1] = workspace.first_task[i] + n_runs * layout.kv_heads;
    if (bytes_read != nullptr) {
      *bytes_read +=
          query.masses.n_pages * layout.kv_heads * static_cast<int64_t>(format.scan_bytes());
    }
  }
  const int64_t* first_task = workspace.first_task.data();
  pool.ForEach(first_task[n_queries], [&](int64_t index, int /*thread*/) {
    const int64_t i = std::upper_bound(first_task, first_task + n_queries, index) - first_task - 1;
    const SketchScanQuery& query = queries[i];
    const int64_t of_query = index - first_task[i];
    const int64_t n_runs = (query.masses.n_pages + kPagesPerTask - 1) / kPagesPerTask;
    const auto head = static_cast<int>(of_query / n_runs);
    const int64_t begin = of_query % n_runs * kPagesPerTask;
    const int64_t first_head = static_cast<int64_t>(head) * group;
    PageMasses masses = query.masses;
    masses.max += first_head * masses.stride;
    masses.sum += first_head * masses.stride;
    if (masses.weights != nullptr) masses.weights += first_head * masses.stride * layout.slots;
    SketchScanCpu({.kv = &query.kv,
                   .format = &format,
                   .plane = plane,
                   .head = head,
                   .begin_page = begin,
                   .end_page = std::min(begin + kPagesPerTask, masses.n_pages),
                   .group_heads = group,
                   .q = workspace.q.data() + (i * params.query_heads + first_head) * dim,
                   .masses = masses});
  });
}

}  // namespace winnow
