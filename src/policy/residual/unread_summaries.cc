#include "policy/residual/unread_summaries.h"

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
  for (size_t i = 0; i < pages.size(); ++i) {
    LoadStoredSummary(kv, pages[i], kv_head, &summaries_[i]);
    const auto floats = [&](Plane plane) {
      return reinterpret_cast<const float*>(kv.PlaneOf(plane, pages[i], kv_head));
    };
    const float* mean = floats(Plane::kKeyMean);
    const float* deviation = floats(Plane::kKeyDeviation);
    mean_.insert(mean_.end(), mean, mean + dim_);
    for (int64_t c = 0; c < dim_; ++c) {
      variance_.push_back(static_cast<double>(deviation[c]) * deviation[c]);
    }
    if (with_values) {
      const float* value = floats(Plane::kValueMean);
      value_mean_.insert(value_mean_.end(), value, value + dim_);
    }
  }
  return std::ssize(pages) * (with_values ? 5 : 4) * layout.padded_dim *
         static_cast<int64_t>(sizeof(float));
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
