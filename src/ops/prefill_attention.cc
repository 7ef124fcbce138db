#include "ops/prefill_attention.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "ops/prefill_attention_cpu.h"

namespace winnow {
namespace {

void CheckParams(const PrefillAttentionParams& params) {
  WINNOW_CHECK(params.kv.layout != nullptr);
  const PageLayout& layout = *params.kv.layout;
  const auto [n_queries, query_heads, head_dim] = params.q.shape;
  WINNOW_CHECK(params.out.shape == params.q.shape);
  WINNOW_CHECK(head_dim == layout.head_dim, "head dimension {}, pages of {}", head_dim,
               layout.head_dim);
  WINNOW_CHECK(query_heads > 0 && query_heads % layout.kv_heads == 0, "{} query heads, {} KV heads",
               query_heads, layout.kv_heads);
  WINNOW_CHECK(static_cast<int64_t>(params.begin.size()) == n_queries &&
               static_cast<int64_t>(params.end.size()) == n_queries);
  WINNOW_CHECK(params.kv.n_tokens <= kMaxAttentionTokens, "{} tokens", params.kv.n_tokens);
  WINNOW_CHECK(static_cast<int64_t>(params.kv.pages.size()) * layout.slots >= params.kv.n_tokens);
  for (int64_t t = 0; t < n_queries; ++t) {
    WINNOW_CHECK(0 <= params.begin[t] && params.begin[t] <= params.end[t] &&
                     params.end[t] <= params.kv.n_tokens,
                 "query {}: [{}, {}) of {}", t, params.begin[t], params.end[t], params.kv.n_tokens);
    WINNOW_CHECK(
        t == 0 || (params.begin[t - 1] <= params.begin[t] && params.end[t - 1] <= params.end[t]),
        "ranges fall at query {}", t);
  }
}

// Queries of a task: as many as leave each thread about four tasks, for balance, within the limits
// on rows. A row's result does not depend on it.
int64_t BlockQueries(int64_t n_queries, int64_t group, int kv_heads, int n_threads) {
  constexpr int64_t kTasksPerThread = 4;
  const int64_t rows = n_queries * group * kv_heads / (kTasksPerThread * n_threads);
  const int64_t queries = std::clamp(rows, kMinPrefillTaskRows, kMaxPrefillTaskRows) / group;
  // Whole units of rows, where a unit is a whole number of queries.
  const int64_t unit = kPrefillRowUnit / std::gcd(kPrefillRowUnit, group);
  const int64_t block = queries >= unit ? queries / unit * unit : queries;
  return std::clamp<int64_t>(block, 1, n_queries);
}

// Late queries first: under a causal mask they see the most, and the last tasks to be handed out
// should be short.
std::vector<PrefillTask> MakeTasks(int64_t n_queries, int64_t block, int kv_heads) {
  std::vector<PrefillTask> tasks;
  for (int64_t end = n_queries; end > 0; end = std::max<int64_t>(0, end - block)) {
    const int64_t first = std::max<int64_t>(0, end - block);
    for (int head = 0; head < kv_heads; ++head) {
      tasks.push_back({.head = head, .first = first, .n = end - first});
    }
  }
  return tasks;
}

}  // namespace

void PrefillAttention(ThreadPool& pool, const PrefillAttentionParams& params,
                      PrefillWorkspace& workspace, AttentionAccount* account) {
  CheckParams(params);
  const auto [n_queries, query_heads, head_dim] = params.q.shape;
  if (n_queries == 0) return;
  const PageLayout& layout = *params.kv.layout;
  const int64_t group = query_heads / layout.kv_heads;
  const int64_t block = BlockQueries(n_queries, group, layout.kv_heads, pool.size());
  const int64_t scratch = PrefillScratchFloats(block * group, head_dim);
  workspace.scratch.Resize(static_cast<size_t>(pool.size() * scratch));
  const std::vector<PrefillTask> tasks = MakeTasks(n_queries, block, layout.kv_heads);
  pool.ForEach(static_cast<int64_t>(tasks.size()), [&](int64_t task, int thread) {
    RunPrefillTask(params, tasks[task],
                   workspace.scratch.span().subspan(static_cast<size_t>(thread * scratch),
                                                    static_cast<size_t>(scratch)));
  });

  if (account != nullptr) {
    const int64_t tokens = params.end[n_queries - 1] - params.begin[0];
    account->tokens_read += tokens;
    account->tokens_resident += tokens;
    account->bytes_read += layout.TokenBytes(tokens);
    account->bytes_dense += layout.TokenBytes(tokens);
  }
}

}  // namespace winnow
