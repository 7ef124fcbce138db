// Means, deviations and boxes of the unread pages of one KV head, read from the planes of its
// pages, for estimates and the sound intervals that they are clipped to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/sequence_kv.h"
#include "policy/certify/mgf_bounds.h"
#include "policy/certify/summary.h"
#include "policy/residual/estimators.h"

namespace winnow {

class UnreadSummaries {
 public:
  // What Load reads of the pages.
  static PlaneSet Planes(bool with_values);
  // `pages` of one KV head, all full. Returns the bytes read.
  int64_t Load(const PagedKv& kv, int kv_head, std::span<const int32_t> pages, bool with_values);

  // Pages in the order of Load; value_mean is empty without values.
  PageMoments Moments() const;
  // Where log Z_p of page i lies, from its mean, deviation and box (spec: bounds from page
  // summaries, without radius and eigenvalue). Without bounds where a figure is not finite.
  LogInterval Interval(std::span<const double> scaled_query, int64_t i) const;
  int64_t size() const { return std::ssize(counts_); }

 private:
  int64_t dim_ = 0;
  std::vector<int64_t> counts_;
  std::vector<PageSummary> summaries_;                // [N] and more
  std::vector<double> mean_, variance_, value_mean_;  // [N, D]
};

}  // namespace winnow
