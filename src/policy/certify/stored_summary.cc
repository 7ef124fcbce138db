#include "policy/certify/stored_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/page_planes.h"

namespace winnow {

PlaneSet StoredSummaryPlanes() { return {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox}; }

void LoadStoredSummary(const PagedKv& kv, int64_t page, int kv_head, PageSummary* summary) {
  const PageLayout& layout = *kv.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  std::vector<float> rows(4 * dim);
  size_t n_rows = 0;
  const auto load = [&](Plane plane, int row) {
    const std::span<float> values = std::span(rows).subspan(n_rows++ * dim, dim);
    LoadKeyStatistics(kv, plane, row, page, kv_head, values);
    return values;
  };
  const std::span<const float> mean = load(Plane::kKeyMean, 0);
  const std::span<const float> deviation = load(Plane::kKeyDeviation, 0);
  const std::span<const float> low = load(Plane::kKeyBox, 0);
  const std::span<const float> high = load(Plane::kKeyBox, 1);
  // Means and deviations were computed in double, from G keys, and rounded to the nearest f16 by
  // way of f32, whose spacing is 2^-13 of that of f16 or less. The mean is off by at most G
  // roundings of the largest key as well; a deviation around such a mean by as much, and by G
  // roundings of its own.
  const auto stored = [](float x) { return NearestError(x, FloatFormat::kF16) * (1 + 0x1p-12); };
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
    summary->mean_error[c] = stored(mean[c]) + of_sums * largest;
    summary->box_lo[c] = low[c];
    summary->box_hi[c] = high[c];
    const double off = stored(deviation[c]) + of_sums * largest;
    summary->deviation_lo[c] = deviation[c] - off;
    if (summary->deviation_lo[c] < 0) summary->deviation_lo[c] = 0;
    summary->deviation_hi[c] = deviation[c] + off;
  }
  summary->radius = PageSummaryView::kUnknown;
  summary->largest_variance = PageSummaryView::kUnknown;
}

}  // namespace winnow
