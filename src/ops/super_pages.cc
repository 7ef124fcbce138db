#include "ops/super_pages.h"

#include <algorithm>
#include <cmath>

namespace winnow {
namespace {

// The planes of one head: of a page, or of the super-page that is written.
float* FloatsOf(const PageLayout& layout, std::byte* side, Plane plane, int head) {
  return reinterpret_cast<float*>(side + layout.PlaneOffset(plane, head));
}

// The merged moments of one head. All pages have as many keys.
void MergeMoments(const PagedKv& pages, int64_t first, int head, bool deviation, float* to) {
  for (int c = 0; c < pages.layout->padded_dim; ++c) {
    double mean = 0;
    double squares = 0;  // mean of x²
    for (int64_t page = first; page < first + kSuperPagePages; ++page) {
      const auto* means =
          reinterpret_cast<const float*>(pages.PlaneOf(Plane::kKeyMean, page, head));
      mean += static_cast<double>(means[c]) / kSuperPagePages;
      if (!deviation) continue;
      const auto* deviations =
          reinterpret_cast<const float*>(pages.PlaneOf(Plane::kKeyDeviation, page, head));
      squares += (static_cast<double>(means[c]) * means[c] +
                  static_cast<double>(deviations[c]) * deviations[c]) /
                 kSuperPagePages;
    }
    const double variance = squares - mean * mean;
    // Rounding below zero is cut off, a NaN is not.
    to[c] = static_cast<float>(!deviation ? mean : std::sqrt(variance < 0 ? 0.0 : variance));
  }
}

// box: the minima, then the maxima.
void MergeBoxes(const PagedKv& pages, int64_t first, int head, float* box) {
  const int dim = pages.layout->padded_dim;
  for (int64_t page = first; page < first + kSuperPagePages; ++page) {
    const auto* from = reinterpret_cast<const float*>(pages.PlaneOf(Plane::kKeyBox, page, head));
    for (int c = 0; c < 2 * dim; ++c) {
      // A NaN is taken over, and stays.
      const bool further = c < dim ? from[c] < box[c] : from[c] > box[c];
      if (page == first || further || std::isnan(from[c])) box[c] = from[c];
    }
  }
}

}  // namespace

void UpdateSuperPages(SequenceKv* kv, int layer) {
  const PageLayout& layout = kv->pool().super_page_layout();
  if (layout.planes.empty() || kv->first_resident(layer) > 0) return;
  const PagedKv pages = kv->View(layer);
  const int64_t n_full = pages.n_tokens / pages.layout->slots;
  for (int64_t first = std::ssize(kv->SuperPages(layer).pages) * kSuperPagePages;
       first + kSuperPagePages <= n_full; first += kSuperPagePages) {
    std::byte* side = kv->AddSuperPage(layer);
    for (int head = 0; head < layout.kv_heads; ++head) {
      for (const bool deviation : {false, true}) {
        const Plane plane = deviation ? Plane::kKeyDeviation : Plane::kKeyMean;
        if (!layout.planes.Has(plane)) continue;
        MergeMoments(pages, first, head, deviation, FloatsOf(layout, side, plane, head));
      }
      if (layout.planes.Has(Plane::kKeyBox)) {
        MergeBoxes(pages, first, head, FloatsOf(layout, side, Plane::kKeyBox, head));
      }
    }
  }
}

}  // namespace winnow
