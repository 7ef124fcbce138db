#include "ops/sketch_values.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "core/check.h"
#include "ops/attention_state.h"
#include "ops/sketch_values_cpu.h"

namespace winnow {
namespace {

constexpr int64_t kPagesPerTask = 16;

// One call: what its tasks share. A task is (query, KV head, run of its pages); whoever finishes a
// KV head's last run sums them all, in order.
class ValuesCall {
 public:
  ValuesCall(std::span<const SketchValuesQuery> queries, int query_heads, int bits,
             SketchValuesWorkspace& workspace)
      : queries_(queries),
        workspace_(workspace),
        layout_(*queries[0].kv.layout),
        plane_(ValueSketchPlane(bits)),
        format_(layout_, bits),
        query_heads_(query_heads),
        group_(query_heads / layout_.kv_heads),
        state_floats_(group_ * (static_cast<int64_t>(format_.dim) + 1)) {
    WINNOW_CHECK(layout_.planes.Has(plane_), "the pages have no value sketch of {} bits", bits);
    WINNOW_CHECK(group_ > 0 && group_ * layout_.kv_heads == query_heads, "{} query heads, {} KV",
                 query_heads, layout_.kv_heads);
    const auto n_heads = static_cast<int64_t>(queries.size()) * layout_.kv_heads;
    workspace.first_task.Resize(n_heads + 1);
    workspace.pending.Resize(n_heads);
    workspace.first_task[0] = 0;
    for (int64_t h = 0; h < n_heads; ++h) Prepare(h);
    workspace.partials.Resize(n_tasks() * state_floats_);
  }

  int64_t n_tasks() const { return workspace_.first_task.span().back(); }
  int64_t bytes_read() const {
    int64_t n_pages = 0;
    for (const SketchValuesQuery& query : queries_) {
      for (const EstimatedPages& head : query.heads) n_pages += std::ssize(head.pages);
    }
    return n_pages * static_cast<int64_t>(format_.bytes);
  }

  void RunTask(int64_t index) const {
    const std::span<int64_t> first = workspace_.first_task.span();
    const int64_t h = std::upper_bound(first.begin(), first.end(), index) - first.begin() - 1;
    const SketchValuesQuery& query = QueryOf(h);
    const EstimatedPages& head = HeadOf(h);
    const std::span<const int32_t> pages = head.pages;
    const int64_t begin = (index - first[h]) * kPagesPerTask;
    float* state = workspace_.partials.data() + index * state_floats_;
    SketchValuesCpu(
        {.kv = &query.kv,
         .format = &format_,
         .plane = plane_,
         .head = static_cast<int>(h % layout_.kv_heads),
         .pages = pages.subspan(begin, std::min(kPagesPerTask, std::ssize(pages) - begin)),
         .group_heads = group_,
         .stride = query.masses.stride,
         .weights = query.masses.From(FirstQueryHead(h), layout_.slots).weights,
         .shares = head.shares,
         .sums = state,
         .totals = state + group_ * static_cast<int64_t>(format_.dim)});
    // Release our sums, acquire those of the others.
    std::atomic_ref<int32_t> pending(workspace_.pending[h]);
    if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish(h);
  }

 private:
  // h counts the KV heads of all queries.
  const SketchValuesQuery& QueryOf(int64_t h) const { return queries_[h / layout_.kv_heads]; }
  const EstimatedPages& HeadOf(int64_t h) const { return QueryOf(h).heads[h % layout_.kv_heads]; }
  int64_t FirstQueryHead(int64_t h) const { return h % layout_.kv_heads * group_; }
  // Counts the tasks of KV head h, and writes the state of no page.
  void Prepare(int64_t h) {
    const SketchValuesQuery& query = QueryOf(h);
    WINNOW_CHECK(*query.kv.layout == layout_ && query.masses.weights != nullptr &&
                 std::ssize(query.heads) == layout_.kv_heads);
    const std::span<const int32_t> pages = HeadOf(h).pages;
    WINNOW_CHECK(pages.empty() || (pages.front() >= 0 && pages.back() < query.masses.n_pages),
                 "pages {} to {} of {}", pages.front(), pages.back(), query.masses.n_pages);
    const int64_t n_runs = (std::ssize(pages) + kPagesPerTask - 1) / kPagesPerTask;
    workspace_.first_task[h + 1] = workspace_.first_task[h] + n_runs;
    workspace_.pending[h] = static_cast<int32_t>(n_runs);
    if (n_runs > 0) return;
    std::fill_n(query.out + FirstQueryHead(h) * layout_.head_dim, group_ * layout_.head_dim, 0.0f);
    std::fill_n(query.log_mass + FirstQueryHead(h), group_, kEmptyLogMass);
  }

  void Finish(int64_t h) const {
    const SketchValuesQuery& query = QueryOf(h);
    const auto dim = static_cast<int64_t>(format_.dim);
    const int64_t first = workspace_.first_task[h];
    for (int r = 0; r < group_; ++r) {
      const int64_t query_head = FirstQueryHead(h) + r;
      float* out = query.out + query_head * layout_.head_dim;
      std::fill_n(out, layout_.head_dim, 0.0f);
      float total = 0;
      for (int64_t task = first; task < workspace_.first_task[h + 1]; ++task) {
        const float* state = workspace_.partials.data() + task * state_floats_;
        total += state[group_ * dim + r];
        for (int64_t c = 0; c < layout_.head_dim; ++c) out[c] += state[r * dim + c];
      }
      for (int64_t c = 0; c < layout_.head_dim; ++c) out[c] /= total;
      query.log_mass[query_head] = HeadOf(h).log_totals[r] + std::log(total);
    }
  }

  std::span<const SketchValuesQuery> queries_;
  SketchValuesWorkspace& workspace_;
  const PageLayout& layout_;
  Plane plane_;
  SketchFormat format_;
  int query_heads_;
  int group_;
  int64_t state_floats_;  // a partial state: R sums [P], then R totals
};

}  // namespace

void SketchValues(ThreadPool& pool, std::span<const SketchValuesQuery> queries, int query_heads,
                  int bits, SketchValuesWorkspace& workspace, int64_t* bytes_read) {
  if (queries.empty()) return;
  const ValuesCall call(queries, query_heads, bits, workspace);
  pool.ForEach(call.n_tasks(), [&](int64_t task, int /*thread*/) { call.RunTask(task); });
  if (bytes_read != nullptr) *bytes_read += call.bytes_read();
}

}  // namespace winnow
