#include "policy/certify/page_shapes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/page_planes.h"
#include "policy/certify/read_mass.h"
#include "policy/certify/stored_summary.h"

namespace winnow {
namespace {

// max |k_c| of each channel over the full pages of the layer, [D]; NaN where a key is.
void WidenToFullPages(const PagedKv& kv, int kv_head, std::vector<double>* largest) {
  const PageLayout& layout = *kv.layout;
  std::vector<float> low(layout.head_dim);
  std::vector<float> high(layout.head_dim);
  for (int64_t page = 0; page < kv.n_tokens / layout.slots; ++page) {
    LoadKeyStatistics(kv, Plane::kKeyBox, 0, page, kv_head, low);
    LoadKeyStatistics(kv, Plane::kKeyBox, 1, page, kv_head, high);
    for (int c = 0; c < layout.head_dim; ++c) {
      const double x = std::max(std::abs(low[c]), std::abs(high[c])) + 0 * (low[c] + high[c]);
      double& so_far = (*largest)[c];
      so_far = std::isnan(x) ? x : std::max(so_far, x);
    }
  }
}

}  // namespace

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
  const auto row = static_cast<int64_t>(layout.KeyRowBytes());
  return 2 * row * (kv.n_tokens / layout.slots + std::ssize(head.unread));
}

void PageShapes::Describe(std::span<PageBound> pages) const {
  for (size_t i = 0; i < shapes.size(); ++i) {
    const LogInterval mass = BoundLogMass(shapes[i]);
    pages[i] = {mass.lo, mass.hi, SpreadOfWeights(shapes[i])};
    if (mass.statement.standing == Standing::kNotFinite) {
      pages[i].log_hi = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

}  // namespace winnow
