#include "policy/select/summary_router.h"

#include <algorithm>

#include "policy/select/routing.h"

namespace winnow {
namespace {

PageMasses OfHead(const PageMasses& masses, const LayerStep& step, int kv_head, int kv_heads,
                  int slots) {
  return masses.From(static_cast<int64_t>(kv_head) * (step.params.query_heads / kv_heads), slots);
}

}  // namespace

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

  const PageLayout& layout = *step.queries[0].kv.layout;
  const int kv_heads = layout.kv_heads;
  const int group = step.params.query_heads / kv_heads;
  heads_.resize(long_queries_.size() * kv_heads);
  step.pool->ForEach(std::ssize(heads_), [&](int64_t h, int /*thread*/) {
    heads_[h].query = long_queries_[h / kv_heads];
    heads_[h].kv_head = static_cast<int>(h % kv_heads);
    ChoosePages(step, super_queries_[h / kv_heads].masses, &heads_[h]);
  });
  queries_.clear();
  for (Head& head : heads_) {
    const LayerQuery& query = step.queries[head.query];
    PagedKv kv = query.kv;
    kv.pages = head.ids;
    kv.n_tokens = std::ssize(head.ids) * layout.slots;
    queries_.push_back({.q = query.q + static_cast<int64_t>(head.kv_head) * group * layout.head_dim,
                        .kv = kv,
                        .masses = {.n_pages = std::ssize(head.ids),
                                   .stride = std::ssize(head.ids),
                                   .max = head.max.data(),
                                   .sum = head.sum.data()},
                        .first_head = head.kv_head,
                        .n_heads = 1});
  }
  SummaryScan(*step.pool, queries_, step.params, score_, workspace_, bytes_read);
  step.pool->ForEach(std::ssize(heads_), [&](int64_t h, int /*thread*/) {
    Scatter(step, super_queries_[h / kv_heads].masses, heads_[h]);
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
  const PagedKv& kv = step.queries[head->query].kv;
  const int kv_heads = kv.layout->kv_heads;
  const int group = step.params.query_heads / kv_heads;
  const PageMasses masses = OfHead(of_super, step, head->kv_head, kv_heads, kv.layout->slots);
  head->shares.resize(group * masses.stride);
  head->pooled.resize(masses.n_pages);
  head->log_totals.resize(group);
  PageShares(masses, group, head->shares.data(), head->pooled.data(), head->log_totals.data());
  // Shares that are not finite have no order; then every page is looked at, and noticed.
  const bool ranked =
      std::all_of(head->pooled.begin(), head->pooled.end(), [](float share) { return share >= 0; });
  head->pages.clear();
  for (int64_t super : TopFloatIndices(head->pooled, ranked ? n_super_ : masses.n_pages)) {
    for (int64_t i = 0; i < kSuperPagePages; ++i) {
      head->pages.push_back(super * kSuperPagePages + i);
    }
  }
  const int64_t n_pages = step.masses[head->query].n_pages;
  for (int64_t page = masses.n_pages * kSuperPagePages; page < n_pages; ++page) {
    head->pages.push_back(page);
  }
  head->ids.clear();
  for (int64_t page : head->pages) head->ids.push_back(kv.pages[page]);
  head->max.resize(group * head->pages.size());
  head->sum.resize(head->max.size());
}

void SummaryRouter::Scatter(const LayerStep& step, const PageMasses& of_super,
                            const Head& head) const {
  const PageLayout& layout = *step.queries[head.query].kv.layout;
  const int kv_heads = layout.kv_heads;
  const PageMasses from = OfHead(of_super, step, head.kv_head, kv_heads, layout.slots);
  const PageMasses to = OfHead(step.masses[head.query], step, head.kv_head, kv_heads, layout.slots);
  const size_t n = head.pages.size();
  for (int r = 0; r < step.params.query_heads / kv_heads; ++r) {
    float* max = to.max + r * to.stride;
    for (int64_t super = 0; super < from.n_pages; ++super) {
      std::fill_n(max + super * kSuperPagePages, kSuperPagePages,
                  from.max[r * from.stride + super]);
    }
    for (size_t i = 0; i < n; ++i) max[head.pages[i]] = head.max[r * n + i];
    std::fill_n(to.sum + r * to.stride, to.n_pages, static_cast<float>(layout.slots));
  }
}

}  // namespace winnow
