// Scores pages by their summaries; of a long context those of super-pages come first, and only the
// pages of the best super-pages have their own looked at.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor_view.h"
#include "ops/summary_scan.h"
#include "policy/select/page_subset.h"
#include "policy/select/selector.h"

namespace winnow {

class SummaryRouter {
 public:
  // Keeps `n_super` super-pages of each KV head, where there are at least twice as many; 0: never.
  SummaryRouter(SummaryScore score, int64_t n_super) : score_(score), n_super_(n_super) {}

  SummaryScore score() const { return score_; }
  // Fills the masses of `step`. A page that was not looked at has its super-page's.
  void Scan(const LayerStep& step, int64_t* bytes_read);

 private:
  // One KV head of a query that is searched by super-pages.
  struct Head {
    BestPages best;     // of the super-pages
    PageSubset subset;  // what is looked at
  };

  bool BySuperPages(const LayerQuery& query) const {
    return n_super_ > 0 && std::ssize(query.super_pages.pages) >= 2 * n_super_;
  }
  void ScanSuperPages(const LayerStep& step, int64_t* bytes_read);
  void ChoosePages(const LayerStep& step, const PageMasses& of_super, Head* head) const;
  static void Scatter(const LayerStep& step, const PageMasses& of_super, const PageSubset& subset);

  SummaryScore score_;
  int64_t n_super_;
  std::vector<PageScanQuery> queries_;
  PageScanWorkspace workspace_;
  AlignedBuffer<float> super_values_;
  std::vector<PageScanQuery> super_queries_;
  std::vector<size_t> long_queries_;  // of the step, as super_queries_
  std::vector<Head> heads_;           // [long queries · K]
};

}  // namespace winnow
