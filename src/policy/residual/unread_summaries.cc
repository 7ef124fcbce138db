#include "policy/residual/unread_summaries.h"

#include <algorithm>

#include "policy/certify/mgf_bounds.h"

namespace winnow {

PlaneSet UnreadSummaries::Planes(bool with_values) {
  PlaneSet planes = {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox};
  if (with_values) planes.Add(Plane::kValueMean);
  return planes;
}

int64_t UnreadSummaries::Load(const PagedKv& kv, int kv_head, std::span<const int32_t> pages,
                              bool with_values) {
  const PageLayout& layout = *kv.layout;
  dim_ = layout.head_dim;
  counts_.assign(pages.size(), layout.slots);
  for (auto* rows : {&mean_, &mean_error_, &variance_, &deviation_lo_, &deviation_hi_, &low_,
                     &high_, &value_mean_}) {
    rows->clear();
    rows->reserve(pages.size() * dim_);
  }
  for (int32_t page : pages) {
    const auto floats = [&](Plane plane) {
      return reinterpret_cast<const float*>(kv.PlaneOf(plane, page, kv_head));
    };
    const float* mean = floats(Plane::kKeyMean);
    const float* deviation = floats(Plane::kKeyDeviation);
    const float* box = floats(Plane::kKeyBox);
    mean_.insert(mean_.end(), mean, mean + dim_);
    low_.insert(low_.end(), box, box + dim_);
    high_.insert(high_.end(), box + layout.padded_dim, box + layout.padded_dim + dim_);
    for (int64_t c = 0; c < dim_; ++c) {
      // What was rounded to a float when it was stored may be off by half of its spacing.
      const double off = NearestError(deviation[c], FloatFormat::kF32);
      mean_error_.push_back(NearestError(mean[c], FloatFormat::kF32));
      deviation_lo_.push_back(std::max(0.0, deviation[c] - off));
      deviation_hi_.push_back(deviation[c] + off);
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

LogMassInterval UnreadSummaries::Interval(std::span<const double> scaled_query, int64_t i) const {
  PageSummaryView page;
  page.n = counts_[i];
  page.mean = Row(mean_, i);
  page.mean_error = Row(mean_error_, i);
  page.box_lo = Row(low_, i);
  page.box_hi = Row(high_, i);
  page.deviation_lo = Row(deviation_lo_, i);
  page.deviation_hi = Row(deviation_hi_, i);
  const LogInterval interval = BoundLogMass(ShapeOfLogits(scaled_query, page));
  return {interval.lo, interval.hi};
}

}  // namespace winnow
