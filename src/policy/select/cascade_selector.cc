#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/page_planes.h"
#include "ops/sketch_scan.h"
#include "ops/summary_scan.h"
#include "policy/select/page_subset.h"
#include "policy/select/selectors.h"
#include "policy/select/summary_router.h"

namespace winnow {
namespace {

// What the pages that are left out weigh together, of those that were looked at, in log mass: next
// to nothing, and yet numbers, so that a budget beyond the P pages takes them in the summary's
// order.
constexpr float kOfLeftOut = -60;

// A summary of every page, then the sketch of the P best of each KV head. What the summary leaves
// out ranks behind them.
class CascadeSelector : public ScanningSelector {
 public:
  CascadeSelector(SummaryRouter router, int64_t n_pages, int bits)
      : router_(std::move(router)), n_pages_(n_pages), bits_(bits) {}
  PlaneSet planes() const override {
    PlaneSet planes = SummaryPlanes(router_.score());
    planes.Add(KeySketchPlane(bits_));
    return planes;
  }
  // Of the pages that were left out it knows nothing but the summary.
  bool estimates_mass() const override { return false; }

 protected:
  void Scan(const LayerStep& step, int64_t* bytes_read) override {
    router_.Scan(step, bytes_read);
    const int kv_heads = step.queries[0].kv.layout->kv_heads;
    const int group = step.params.query_heads / kv_heads;
    heads_.resize(step.queries.size() * kv_heads);
    step.pool->ForEach(std::ssize(heads_), [&](int64_t h, int /*thread*/) {
      Head& head = heads_[h];
      head.subset.query = h / kv_heads;
      head.subset.kv_head = static_cast<int>(h % kv_heads);
      head.subset.pages = head.best.Of(
          MassesOf(step.masses[head.subset.query], step, head.subset.kv_head), group, n_pages_);
    });
    queries_.clear();
    for (Head& head : heads_) queries_.push_back(head.subset.Query(step));
    SketchScan(*step.pool, queries_, step.params, bits_, workspace_, bytes_read);
    step.pool->ForEach(std::ssize(heads_),
                       [&](int64_t h, int /*thread*/) { WriteBack(step, heads_[h]); });
  }

 private:
  // One KV head of one query.
  struct Head {
    BestPages best;
    PageSubset subset;
  };

  static void WriteBack(const LayerStep& step, const Head& head) {
    const PageSubset& subset = head.subset;
    const PageMasses masses = MassesOf(step.masses[subset.query], step, subset.kv_head);
    const size_t n = subset.pages.size();
    const int group = step.params.query_heads / step.queries[0].kv.layout->kv_heads;
    for (int r = 0; r < group; ++r) {
      float* max = masses.max + r * masses.stride;
      float* sum = masses.sum + r * masses.stride;
      // Until now the summary's masses stand there.
      const float shift = LogTotal(subset.max.data() + r * n, subset.sum.data() + r * n, n) -
                          head.best.log_totals()[r] + kOfLeftOut;
      for (int64_t page = 0; page < masses.n_pages; ++page) max[page] += shift;
      for (size_t i = 0; i < n; ++i) {
        max[subset.pages[i]] = subset.max[r * n + i];
        sum[subset.pages[i]] = subset.sum[r * n + i];
      }
    }
  }

  // log Σ sum·e^max of at least one page.
  static float LogTotal(const float* max, const float* sum, size_t n) {
    const float largest = *std::max_element(max, max + n);
    float total = 0;
    for (size_t i = 0; i < n; ++i) total += sum[i] * std::exp(max[i] - largest);
    return largest + std::log(total);
  }

  SummaryRouter router_;
  int64_t n_pages_;
  int bits_;
  std::vector<Head> heads_;  // [queries · K]
};

}  // namespace

std::unique_ptr<Selector> MakeCascadeSelector(Params& params) {
  const SummaryScore summary = ParseSummary(params, "meanstd");
  const int64_t n_pages = params.Int("P", 64, 1, int64_t{1} << 30);
  const int bits = std::stoi(params.Choice("bits", "4", {"2", "4", "8"}));
  // At least twice the pages that the sketch shall have to choose from.
  int64_t n_super = ParseSuperPages(params);
  if (n_super > 0) n_super = std::max(n_super, 2 * n_pages / kSuperPagePages);
  return std::make_unique<CascadeSelector>(SummaryRouter(summary, n_super), n_pages, bits);
}

}  // namespace winnow
