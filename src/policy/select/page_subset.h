// Some pages of one KV head, found by one scan and looked at by the next.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/select/selector.h"

namespace winnow {

// The pages with the largest pooled shares; keeps its scratch.
class BestPages {
 public:
  // The `k` best pages of a KV head's masses, ascending. Shares that are not finite have no order:
  // then all pages, so that whoever looks at them notices.
  std::vector<int64_t> Of(const PageMasses& masses, int group, int64_t k);
  // Of those masses, as PageShares gives them [R].
  std::span<const float> log_totals() const { return log_totals_; }

 private:
  std::vector<float> shares_;      // [R, pages]
  std::vector<float> pooled_;      // [pages]
  std::vector<float> log_totals_;  // [R]
};

struct PageSubset {
  int64_t query = 0;  // of the step
  int kv_head = 0;
  std::vector<int64_t> pages;   // of the query's, ascending
  std::vector<float> max, sum;  // [R, pages], of the scan

  // A scan of these pages only. Refers to this object.
  PageScanQuery Query(const LayerStep& step);

 private:
  std::vector<PageId> ids_;  // of `pages`
};

// The masses of the query heads of one KV head.
inline PageMasses MassesOf(const PageMasses& masses, const LayerStep& step, int kv_head) {
  const PageLayout& layout = *step.queries[0].kv.layout;
  const int group = step.params.query_heads / layout.kv_heads;
  return masses.From(static_cast<int64_t>(kv_head) * group, layout.slots);
}

}  // namespace winnow
