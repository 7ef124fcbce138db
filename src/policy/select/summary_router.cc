#include "policy/select/summary_router.h"

#include <algorithm>

namespace winnow {

void SummaryRouter::Scan(const LayerStep& step, int64_t* bytes_read) {
  queries_.clear();
  long_queries_.clear();
  for (size_t i = 0; i < step.queries.size(); ++i) {
    if (BySuperPages(step.queries[i])) {
      long_queries_.push_back(i);
    } else {
      queries_.push_back(
          {.q = step.queries[i].q, .kv = step.queries[i].kv, .masses = step.masses[i]});
    }
  }
  if (!queries_.empty()) {
    SummaryScan(*step.pool, queries_, step.params, score_, workspace_, bytes_read);
  }
  if (long_queries_.empty()) return;
  ScanSuperPages(step, bytes_read);

  const int kv_heads = step.queries[0].kv.layout->kv_heads;
  heads_.resize(long_queries_.size() * kv_heads);
  step.pool->ForEach(std::ssize(heads_), [&](int64_t h, int /*thread*/) {
    heads_[h].subset.query = static_cast<int64_t>(long_queries_[h / kv_heads]);
    heads_[h].subset.kv_head = static_cast<int>(h % kv_heads);
    ChoosePages(step, super_queries_[h / kv_heads].masses, &heads_[h]);
  });
  queries_.clear();
  for (Head& head : heads_) queries_.push_back(head.subset.Query(step));
  SummaryScan(*step.pool, queries_, step.params, score_, workspace_, bytes_read);
  step.pool->ForEach(std::ssize(heads_), [&](int64_t h, int /*thread*/) {
    Scatter(step, super_queries_[h / kv_heads].masses, heads_[h].subset);
  });
}

void SummaryRouter::ScanSuperPages(const LayerStep& step, int64_t* bytes_read) {
  int64_t n_values = 0;
  for (size_t i : long_queries_) {
    n_values += step.params.query_heads * std::ssize(step.queries[i].super_pages.pages);
  }
  super_values_.Resize(2 * n_values);
  float* values = super_values_.data();
  super_queries_.clear();
  for (size_t i : long_queries_) {
    const PagedKv& kv = step.queries[i].super_pages;
    const int64_t n_pages = std::ssize(kv.pages);
    const int64_t n = step.params.query_heads * n_pages;
    super_queries_.push_back(
        {.q = step.queries[i].q,
         .kv = kv,
         .masses = {.n_pages = n_pages, .stride = n_pages, .max = values, .sum = values + n}});
    values += 2 * n;
  }
  SummaryScan(*step.pool, super_queries_, step.params, score_, workspace_, bytes_read);
}

void SummaryRouter::ChoosePages(const LayerStep& step, const PageMasses& of_super,
                                Head* head) const {
  const int group = step.params.query_heads / step.queries[0].kv.layout->kv_heads;
  std::vector<int64_t>& pages = head->subset.pages;
  pages.clear();
  for (int64_t super :
       head->best.Of(MassesOf(of_super, step, head->subset.kv_head), group, n_super_)) {
    for (int64_t i = 0; i < kSuperPagePages; ++i) pages.push_back(super * kSuperPagePages + i);
  }
  const int64_t n_pages = step.masses[head->subset.query].n_pages;
  for (int64_t page = of_super.n_pages * kSuperPagePages; page < n_pages; ++page) {
    pages.push_back(page);
  }
}

void SummaryRouter::Scatter(const LayerStep& step, const PageMasses& of_super,
                            const PageSubset& subset) {
  const PageLayout& layout = *step.queries[0].kv.layout;
  const PageMasses from = MassesOf(of_super, step, subset.kv_head);
  const PageMasses to = MassesOf(step.masses[subset.query], step, subset.kv_head);
  const size_t n = subset.pages.size();
  for (int r = 0; r < step.params.query_heads / layout.kv_heads; ++r) {
    float* max = to.max + r * to.stride;
    for (int64_t super = 0; super < from.n_pages; ++super) {
      std::fill_n(max + super * kSuperPagePages, kSuperPagePages,
                  from.max[r * from.stride + super]);
    }
    for (size_t i = 0; i < n; ++i) max[subset.pages[i]] = subset.max[r * n + i];
    std::fill_n(to.sum + r * to.stride, to.n_pages, static_cast<float>(layout.slots));
  }
}

}  // namespace winnow
