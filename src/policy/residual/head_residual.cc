#include "policy/residual/head_residual.h"

#include <algorithm>

#include "core/check.h"
#include "ops/attention_state.h"
#include "ops/kv_store.h"

namespace winnow {

void HeadResidual::Estimate(const LayerStep& step, ResidualStates states,
                            ResidualAccount* account) {
  if (step.queries.empty()) return;
  const PageLayout& layout = *step.queries[0].kv.layout;
  const int group = step.params.query_heads / layout.kv_heads;
  const int64_t rows = std::ssize(step.queries) * step.params.query_heads;
  std::fill_n(states.out, rows * layout.head_dim, 0.0f);
  std::fill_n(states.log_mass, rows, kEmptyLogMass);

  heads_.clear();
  for (int64_t h = 0; h < std::ssize(unread_); ++h) {
    if (unread_[h].pages.empty()) continue;
    const int64_t query = h / layout.kv_heads;
    heads_.push_back({.slot = std::ssize(heads_),
                      .query = query,
                      .kv_head = static_cast<int>(h % layout.kv_heads),
                      .source = &step.queries[query],
                      .unread = unread_[h]});
  }
  if (heads_.empty()) return;
  Prepare(step, heads_, &account->bytes_read);
  dropped_.assign(heads_.size() * group, 0);
  step.pool->ForEach(std::ssize(dropped_), [&](int64_t task, int /*thread*/) {
    const UnreadHead& head = heads_[task / group];
    const auto query_head = static_cast<int>(head.kv_head * group + task % group);
    const int64_t row = head.query * step.params.query_heads + query_head;
    dropped_[task] = EstimateHead(step, head, query_head, states.out + row * layout.head_dim,
                                  states.log_mass + row)
                         ? 0
                         : 1;
  });
  if (account->dropped == nullptr) return;
  for (size_t task = 0; task < dropped_.size(); ++task) {
    account->dropped[heads_[task / group].query] += dropped_[task];
  }
}

std::vector<double> RawQuery(const LayerQuery& query, int query_head) {
  const int64_t dim = query.kv.layout->head_dim;
  const float* q = query.q + query_head * dim;
  return {q, q + dim};
}

std::vector<double> ScaledQuery(const LayerStep& step, const LayerQuery& query, int query_head) {
  std::vector<double> q = RawQuery(query, query_head);
  for (double& x : q) x *= static_cast<double>(step.params.scale);
  return q;
}

void StoreState(const PartialAttention& state, float* out, float* log_mass) {
  std::transform(state.out.begin(), state.out.end(), out,
                 [](double x) { return static_cast<float>(x); });
  *log_mass = static_cast<float>(state.log_mass);
}

void TokenRows::Add(const PagedKv& kv, int kv_head, int64_t token) {
  dim = kv.layout->head_dim;
  std::vector<float> row(2 * dim);
  LoadKv(kv, kv_head, token, row.data(), row.data() + dim);
  keys.insert(keys.end(), row.begin(), row.begin() + dim);
  values.insert(values.end(), row.begin() + dim, row.end());
}

}  // namespace winnow
