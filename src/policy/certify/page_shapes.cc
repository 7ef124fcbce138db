#include "policy/certify/page_shapes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "policy/certify/read_mass.h"

namespace winnow {
namespace {

const float* Floats(const PagedKv& kv, Plane plane, int64_t page, int kv_head) {
  return reinterpret_cast<const float*>(kv.PlaneOf(plane, page, kv_head));
}

// Of a full page's keys: mean, deviation and box. Radii, and all of the values, are not kept.
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

// max |k_c| of each channel over the full pages of the layer, [D]; NaN where a key is.
void WidenToFullPages(const PagedKv& kv, int kv_head, std::vector<double>* largest) {
  const PageLayout& layout = *kv.layout;
  for (int64_t page = 0; page < kv.n_tokens / layout.slots; ++page) {
    const float* low = Floats(kv, Plane::kKeyBox, page, kv_head);
    const float* high = low + layout.padded_dim;
    for (int c = 0; c < layout.head_dim; ++c) {
      const double x = std::max(std::abs(low[c]), std::abs(high[c])) + 0 * (low[c] + high[c]);
      double& so_far = (*largest)[c];
      so_far = std::isnan(x) ? x : std::max(so_far, x);
    }
  }
}

}  // namespace

PlaneSet PageShapePlanes() { return {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox}; }

int64_t PageShapes::Load(const LayerStep& step, const ReadHead& head) {
  const PagedKv& kv = step.queries[head.query].kv;
  const PageLayout& layout = *kv.layout;
  const auto group = static_cast<size_t>(step.params.query_heads / layout.kv_heads);
  LargestOfShortPage(kv, head.kv_head, &largest_);
  WidenToFullPages(kv, head.kv_head, &largest_);
  q.resize(group);
  magnitude.assign(group, 0.0);
  for (size_t r = 0; r < group; ++r) {
    LoadScaledQuery(step, head, static_cast<int>(r), &q[r]);
    for (size_t c = 0; c < q[r].size(); ++c) magnitude[r] += std::abs(q[r][c]) * largest_[c];
  }
  shapes.resize(group * head.unread.size());
  for (size_t i = 0; i < head.unread.size(); ++i) {
    LoadStoredSummary(kv, head.unread[i], head.kv_head, &summary_);
    const PageSummaryView view = summary_.View();
    for (size_t r = 0; r < group; ++r) {
      shapes[r * head.unread.size() + i] = ShapeOfLogits(q[r], view);
    }
  }
  // The box of every page, and mean and deviation of those that were not read.
  const int64_t row = layout.padded_dim * static_cast<int64_t>(sizeof(float));
  return 2 * row * (kv.n_tokens / layout.slots + std::ssize(head.unread));
}

}  // namespace winnow
