#include "policy/certify/stored_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace winnow {
namespace {

const float* Floats(const PagedKv& kv, Plane plane, int64_t page, int kv_head) {
  return reinterpret_cast<const float*>(kv.PlaneOf(plane, page, kv_head));
}

}  // namespace

PlaneSet StoredSummaryPlanes() { return {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox}; }

void LoadStoredSummary(const PagedKv& kv, int64_t page, int kv_head, PageSummary* summary) {
  const PageLayout& layout = *kv.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  const float* mean = Floats(kv, Plane::kKeyMean, page, kv_head);
  const float* deviation = Floats(kv, Plane::kKeyDeviation, page, kv_head);
  const float* low = Floats(kv, Plane::kKeyBox, page, kv_head);
  const float* high = low + layout.padded_dim;
  // Means and deviations were computed in double, from G keys, and rounded to the nearest float.
  // The mean is off by at most G roundings of the largest key; a deviation around such a mean by as
  // much, and by G roundings of its own.
  const double of_sums = (2 * layout.slots + 8) * std::numeric_limits<double>::epsilon();
  summary->n = layout.slots;
  for (std::vector<double>* row :
       {&summary->mean, &summary->mean_error, &summary->box_lo, &summary->box_hi,
        &summary->deviation_lo, &summary->deviation_hi}) {
    row->resize(dim);
  }
  for (size_t c = 0; c < dim; ++c) {
    const double largest =
        std::max(std::abs(static_cast<double>(low[c])), std::abs(static_cast<double>(high[c])));
    summary->mean[c] = mean[c];
    summary->mean_error[c] = NearestError(mean[c], FloatFormat::kF32) + of_sums * largest;
    summary->box_lo[c] = low[c];
    summary->box_hi[c] = high[c];
    const double off = NearestError(deviation[c], FloatFormat::kF32) + of_sums * largest;
    summary->deviation_lo[c] = deviation[c] - off;
    if (summary->deviation_lo[c] < 0) summary->deviation_lo[c] = 0;
    summary->deviation_hi[c] = deviation[c] + off;
  }
  summary->radius = PageSummaryView::kUnknown;
  summary->largest_variance = PageSummaryView::kUnknown;
}

}  // namespace winnow
