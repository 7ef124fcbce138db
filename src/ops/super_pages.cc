#include "ops/super_pages.h"

#include <cmath>
#include <utility>
#include <vector>

#include "ops/kv_store_cpu.h"
#include "ops/page_planes.h"

namespace winnow {
namespace {

struct Moments {
  std::vector<float> mean, deviation;  // [P]
};

// The merged moments of one head, of which `deviation` stays zero unless it is wanted. All pages
// have as many keys.
Moments MergeMoments(const PagedKv& pages, int64_t first, int head, bool with_deviation) {
  const auto dim = static_cast<size_t>(pages.layout->padded_dim);
  std::vector<double> means(dim);
  std::vector<double> squares(dim);  // mean of x²
  Moments of_page{std::vector<float>(dim), std::vector<float>(dim)};
  for (int64_t page = first; page < first + kSuperPagePages; ++page) {
    LoadKeyStatistics(pages, Plane::kKeyMean, 0, page, head, of_page.mean);
    if (with_deviation) {
      LoadKeyStatistics(pages, Plane::kKeyDeviation, 0, page, head, of_page.deviation);
    }
    for (size_t c = 0; c < dim; ++c) {
      const double mean = of_page.mean[c];
      const double deviation = of_page.deviation[c];
      means[c] += mean / kSuperPagePages;
      squares[c] += (mean * mean + deviation * deviation) / kSuperPagePages;
    }
  }
  Moments merged = std::move(of_page);
  for (size_t c = 0; c < dim; ++c) {
    const double variance = squares[c] - means[c] * means[c];
    merged.mean[c] = static_cast<float>(means[c]);
    // Rounding below zero, and of the pages' own figures beyond what f16 holds, is cut off; a NaN
    // is not.
    const double deviation = std::sqrt(variance < 0 ? 0.0 : variance);
    merged.deviation[c] = deviation > kLargestF16 ? kLargestF16 : static_cast<float>(deviation);
  }
  return merged;
}

// Row `row` of the box, 0: the minima, 1: the maxima [P].
std::vector<float> MergeBoxes(const PagedKv& pages, int64_t first, int head, int row) {
  std::vector<float> merged(pages.layout->padded_dim);
  std::vector<float> of_page(merged.size());
  LoadKeyStatistics(pages, Plane::kKeyBox, row, first, head, merged);
  for (int64_t page = first + 1; page < first + kSuperPagePages; ++page) {
    LoadKeyStatistics(pages, Plane::kKeyBox, row, page, head, of_page);
    for (size_t c = 0; c < merged.size(); ++c) {
      const float x = of_page[c];
      // A NaN is taken over, and stays.
      if (std::isnan(x) || (row == 0 ? x < merged[c] : x > merged[c])) merged[c] = x;
    }
  }
  return merged;
}

}  // namespace

void UpdateSuperPages(SequenceKv* kv, int layer) {
  const PageLayout& layout = kv->pool().super_page_layout();
  if (layout.planes.empty() || kv->first_resident(layer) > 0) return;
  const PagedKv pages = kv->View(layer);
  const int64_t n_full = pages.n_tokens / pages.layout->slots;
  const PlaneSet& planes = layout.planes;
  for (int64_t first = std::ssize(kv->SuperPages(layer).pages) * kSuperPagePages;
       first + kSuperPagePages <= n_full; first += kSuperPagePages) {
    std::byte* side = kv->AddSuperPage(layer);
    for (int head = 0; head < layout.kv_heads; ++head) {
      const auto store = [&](Plane plane, size_t row, const std::vector<float>& values) {
        StoreRowCpu(DType::kF16, values.data(), std::ssize(values),
                    side + layout.PlaneOffset(plane, head) + row * layout.KeyRowBytes());
      };
      const bool with_deviation = planes.Has(Plane::kKeyDeviation);
      if (planes.Has(Plane::kKeyMean)) {
        const Moments moments = MergeMoments(pages, first, head, with_deviation);
        store(Plane::kKeyMean, 0, moments.mean);
        if (with_deviation) store(Plane::kKeyDeviation, 0, moments.deviation);
      }
      if (!planes.Has(Plane::kKeyBox)) continue;
      for (const int row : {0, 1}) {
        store(Plane::kKeyBox, row, MergeBoxes(pages, first, head, row));
      }
    }
  }
}

}  // namespace winnow
