#include "policy/residual/unread_summaries.h"

#include "ops/page_planes.h"
#include "policy/certify/stored_summary.h"

namespace winnow {

PlaneSet UnreadSummaries::Planes(bool with_values) {
  PlaneSet planes = StoredSummaryPlanes();
  if (with_values) planes.Add(Plane::kValueMean);
  return planes;
}

int64_t UnreadSummaries::Load(const PagedKv& kv, int kv_head, std::span<const int32_t> pages,
                              bool with_values) {
  const PageLayout& layout = *kv.layout;
  dim_ = layout.head_dim;
  counts_.assign(pages.size(), layout.slots);
  if (summaries_.size() < pages.size()) summaries_.resize(pages.size());
  for (auto* rows : {&mean_, &variance_, &value_mean_}) {
    rows->clear();
    rows->reserve(pages.size() * dim_);
  }
  std::vector<float> deviation(dim_);
  for (size_t i = 0; i < pages.size(); ++i) {
    LoadStoredSummary(kv, pages[i], kv_head, &summaries_[i]);
    mean_.insert(mean_.end(), summaries_[i].mean.begin(), summaries_[i].mean.end());
    LoadKeyStatistics(kv, Plane::kKeyDeviation, 0, pages[i], kv_head, deviation);
    for (const float x : deviation) variance_.push_back(static_cast<double>(x) * x);
    if (with_values) {
      const auto* value =
          reinterpret_cast<const float*>(kv.PlaneOf(Plane::kValueMean, pages[i], kv_head));
      value_mean_.insert(value_mean_.end(), value, value + dim_);
    }
  }
  const int64_t of_value = layout.padded_dim * static_cast<int64_t>(sizeof(float));
  return std::ssize(pages) *
         (4 * static_cast<int64_t>(layout.KeyRowBytes()) + (with_values ? of_value : 0));
}

PageMoments UnreadSummaries::Moments() const {
  return {.key_mean = {mean_.data(), {size(), dim_}},
          .key_variance = {variance_.data(), {size(), dim_}},
          .value_mean = {value_mean_.data(), {value_mean_.empty() ? 0 : size(), dim_}},
          .counts = counts_};
}

LogInterval UnreadSummaries::Interval(std::span<const double> scaled_query, int64_t i) const {
  return BoundLogMass(ShapeOfLogits(scaled_query, summaries_[i].View()));
}

}  // namespace winnow
