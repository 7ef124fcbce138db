#include "policy/select/page_subset.h"

#include <algorithm>

#include "ops/summary_scan.h"
#include "policy/select/routing.h"

namespace winnow {

std::vector<int64_t> BestPages::Of(const PageMasses& masses, int group, int64_t k) {
  shares_.resize(group * masses.stride);
  pooled_.resize(masses.n_pages);
  log_totals_.resize(group);
  PageShares(masses, group, shares_.data(), pooled_.data(), log_totals_.data());
  const bool ranked =
      std::all_of(pooled_.begin(), pooled_.end(), [](float share) { return share >= 0; });
  return TopFloatIndices(pooled_, ranked ? k : masses.n_pages);
}

PageScanQuery PageSubset::Query(const LayerStep& step) {
  const LayerQuery& source = step.queries[query];
  const PageLayout& layout = *source.kv.layout;
  const int64_t group = step.params.query_heads / layout.kv_heads;
  const auto n = std::ssize(pages);
  ids_.clear();
  for (int64_t page : pages) ids_.push_back(source.kv.pages[page]);
  max.resize(group * n);
  sum.resize(group * n);
  PagedKv kv = source.kv;
  kv.pages = ids_;
  kv.n_tokens = n * layout.slots;
  return {.q = source.q + kv_head * group * layout.head_dim,
          .kv = kv,
          .masses = {.n_pages = n, .stride = n, .max = max.data(), .sum = sum.data()},
          .first_head = kv_head,
          .n_heads = 1};
}

}  // namespace winnow
