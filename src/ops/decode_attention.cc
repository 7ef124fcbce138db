#include "ops/decode_attention.h"

#include <algorithm>
#include <atomic>

#include "core/check.h"
#include "ops/attention_state.h"
#include "ops/decode_attention_cpu.h"

namespace winnow {
namespace {

// Below this many bytes of keys and values, one thread is done before a parallel region has started
// (2 µs; a core reads about 10 bytes a nanosecond).
constexpr int64_t kInlineBytes = 32 * 1024;

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Splits lie between multiples of kDecodeSplitTokens. An empty range has one, to write its result.
int64_t FirstSplit(const DecodeQuery& query) { return query.begin / kDecodeSplitTokens; }
int64_t SplitCount(const DecodeQuery& query) {
  if (query.begin == query.end) return 1;
  return (query.end - 1) / kDecodeSplitTokens - FirstSplit(query) + 1;
}

// One call: what its tasks share. A task is (query, split, KV head), heads innermost, because the
// heads of a page are neighbours in memory. Whoever finishes the last split of a (query, KV head)
// merges them all, in the order of the tokens: one parallel region, and the order does not depend
// on the threads.
class DecodeCall {
 public:
  DecodeCall(std::span<const DecodeQuery> queries, const DecodeAttentionParams& params,
             DecodeWorkspace& workspace)
      : queries_(queries),
        workspace_(workspace),
        dim_(queries[0].kv.layout->head_dim),
        kv_heads_(queries[0].kv.layout->kv_heads),
        query_heads_(params.query_heads),
        group_(params.query_heads / kv_heads_),
        row_floats_(RoundUp(dim_, kDecodeRowPadding)),
        state_floats_(group_ * row_floats_ + RoundUp(group_, kDecodeRowPadding)) {
    WINNOW_CHECK(query_heads_ > 0 && query_heads_ % kv_heads_ == 0, "{} query heads, {} KV heads",
                 query_heads_, kv_heads_);
    const auto n_queries = static_cast<int64_t>(queries.size());
    workspace.q.Resize(n_queries * query_heads_ * row_floats_);
    workspace.first_task.Resize(n_queries + 1);
    workspace.pending.Resize(n_queries * kv_heads_);
    workspace.first_task[0] = 0;
    for (int64_t i = 0; i < n_queries; ++i) Prepare(i, params.scale);
    workspace.states.Resize(n_tasks() * state_floats_);
  }

  int64_t n_tasks() const { return workspace_.first_task[queries_.size()]; }

  // `next` is the task that this thread is likely to run next.
  void RunTask(int64_t index, int64_t next) const {
    DecodeTask task = Task(index);
    const DecodeTask next_task = Task(std::min(next, n_tasks() - 1));
    if (task.begin < task.end) {
      task.next_keys = FirstKeys(next_task.begin < next_task.end ? next_task : task);
      DecodeTaskCpu(task);
    } else {
      std::fill_n(task.out, group_ * row_floats_, 0.0f);
      std::fill_n(task.log_mass, group_, kEmptyLogMass);
    }
    // Release our state, acquire those of the others.
    const int64_t i = QueryOf(index);
    std::atomic_ref<int32_t> pending(workspace_.pending[i * kv_heads_ + task.head]);
    if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Finish(i, task.head - queries_[i].first_head);
    }
  }

 private:
  // Checks query i, scales and pads it, and counts its tasks.
  void Prepare(int64_t i, float scale) {
    const DecodeQuery& query = queries_[i];
    const PageLayout& layout = *query.kv.layout;
    WINNOW_CHECK(layout.kv_heads == kv_heads_ && layout.head_dim == dim_,
                 "queries over [{}, {}] and [{}, {}] in one call", kv_heads_, dim_, layout.kv_heads,
                 layout.head_dim);
    WINNOW_CHECK(0 <= query.begin && query.begin <= query.end && query.end <= query.kv.n_tokens,
                 "tokens [{}, {}) of {}", query.begin, query.end, query.kv.n_tokens);
    const int n_heads = HeadsOf(query);
    WINNOW_CHECK(0 <= query.first_head && query.first_head + n_heads <= kv_heads_,
                 "KV heads [{}, {}) of {}", query.first_head, query.first_head + n_heads,
                 kv_heads_);
    ScaleQueryRows(query.q, static_cast<int64_t>(n_heads) * group_, dim_, row_floats_, scale,
                   workspace_.q.data() + i * query_heads_ * row_floats_);
    const int64_t n_splits = SplitCount(query);
    workspace_.first_task[i + 1] = workspace_.first_task[i] + n_splits * n_heads;
    std::fill_n(workspace_.pending.data() + i * kv_heads_, kv_heads_,
                static_cast<int32_t>(n_splits));
  }

  int64_t QueryOf(int64_t task) const {
    const int64_t* first_task = workspace_.first_task.data();
    return std::upper_bound(first_task, first_task + queries_.size(), task) - first_task - 1;
  }

  DecodeTask Task(int64_t index) const {
    const int64_t i = QueryOf(index);
    const DecodeQuery& query = queries_[i];
    const int64_t of_query = index - workspace_.first_task[i];
    const int n_heads = HeadsOf(query);
    const int64_t split = FirstSplit(query) + of_query / n_heads;
    const auto head = static_cast<int>(of_query % n_heads);
    float* state = State(index);
    return {.kv = &query.kv,
            .head = query.first_head + head,
            .begin = std::max(query.begin, split * kDecodeSplitTokens),
            .end = std::min(query.end, (split + 1) * kDecodeSplitTokens),
            .group_heads = group_,
            .row_floats = row_floats_,
            .q = workspace_.q.data() + (i * query_heads_ + head * group_) * row_floats_,
            .out = state,
            .log_mass = state + group_ * row_floats_};
  }

  static const std::byte* FirstKeys(const DecodeTask& task) {
    return task.kv->Keys(task.begin / task.kv->layout->slots, task.head);
  }

  float* State(int64_t task) const { return workspace_.states.data() + task * state_floats_; }

  // Merges the splits of one KV head's query heads into the caller's tensors; `head` counts from
  // the query's first.
  void Finish(int64_t i, int head) const {
    const DecodeQuery& query = queries_[i];
    const int64_t first = workspace_.first_task[i] + head;
    for (int r = 0; r < group_; ++r) {
      const int64_t query_head = static_cast<int64_t>(head) * group_ + r;
      float* out = query.out + query_head * dim_;
      std::copy_n(State(first) + r * row_floats_, dim_, out);
      float log_mass = State(first)[group_ * row_floats_ + r];
      for (int64_t task = first + HeadsOf(query); task < workspace_.first_task[i + 1];
           task += HeadsOf(query)) {
        MergeAttentionState(out, &log_mass, State(task) + r * row_floats_,
                            State(task)[group_ * row_floats_ + r], dim_);
      }
      if (query.log_mass != nullptr) query.log_mass[query_head] = log_mass;
    }
  }

  std::span<const DecodeQuery> queries_;
  DecodeWorkspace& workspace_;
  int64_t dim_;
  int kv_heads_;
  int query_heads_;
  int group_;
  int64_t row_floats_;
  int64_t state_floats_;  // a state: R padded rows, then R log masses
};

}  // namespace

void DecodeAttention(ThreadPool& pool, std::span<const DecodeQuery> queries,
                     const DecodeAttentionParams& params, DecodeWorkspace& workspace,
                     AttentionAccount* account) {
  if (queries.empty()) return;
  int64_t bytes = 0;
  int64_t tokens = 0;
  for (const DecodeQuery& query : queries) {
    tokens += query.end - query.begin;
    bytes += query.kv.layout->HeadBytes(query.end - query.begin) * HeadsOf(query);
  }
  const DecodeCall call(queries, params, workspace);
  if (bytes <= kInlineBytes) {
    for (int64_t task = 0; task < call.n_tasks(); ++task) call.RunTask(task, task + 1);
  } else {
    const int n_threads = pool.size();
    pool.ForEach(call.n_tasks(),
                 [&](int64_t task, int /*thread*/) { call.RunTask(task, task + n_threads); });
  }
  if (account != nullptr) {
    *account += {.tokens_read = tokens,
                 .tokens_resident = tokens,
                 .bytes_read = bytes,
                 .bytes_dense = bytes};
  }
}

double DecodeLogMassError(int64_t head_dim, int64_t n_tokens, double magnitude) {
  constexpr double kUnit = 0x1p-24;
  // A score: q scaled, and a sum of `head_dim` products in any order. Masses add up scores'
  // weights, so that their logarithm is off by no more than a score.
  const double of_scores = (static_cast<double>(head_dim) + 12) * magnitude;
  // A split: exponentials (2), their arguments rounded three times (weighted by the arguments
  // themselves, whose mean is at most log 256), a sum of 256, a logarithm, and max + log.
  constexpr double kOfSplit = 320;
  // A merge: two exponentials, a sum, a logarithm, and max + log, as large as the log mass.
  const double merges = static_cast<double>(n_tokens) / kDecodeSplitTokens + 8;
  return kUnit * (of_scores + kOfSplit + merges * (magnitude + 24));
}

double DecodeOutputError(int64_t n_tokens, double log_mass_error) {
  // A weight is a mass over a sum of masses, each within that bound. Whatever they are, what comes
  // out is nearly a mean of values, so that no two such means are further apart than 2.
  const double of_weights = std::min(2.0, std::expm1(2 * log_mass_error));
  // Products with values and their sums in a split; in a merge, two weights (4 each), products and
  // a sum. A weight below the smallest float is lost.
  const double merges = static_cast<double>(n_tokens) / kDecodeSplitTokens + 8;
  return of_weights + 0x1p-24 * (kDecodeSplitTokens + 8 + 12 * merges) + 1e-30;
}

}  // namespace winnow
