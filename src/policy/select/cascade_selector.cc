#include <algorithm>
#include <limits>
#include <utility>

#include "ops/page_planes.h"
#include "ops/sketch_scan.h"
#include "ops/summary_scan.h"
#include "policy/select/routing.h"
#include "policy/select/selectors.h"
#include "policy/select/summary_router.h"

namespace winnow {
namespace {

constexpr float kNoMass = -std::numeric_limits<float>::infinity();

// A summary of every page, then the sketch of the P best of each KV head. What the summary leaves
// out has no mass.
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
    heads_.resize(step.queries.size() * kv_heads);
    step.pool->ForEach(std::ssize(step.queries) * kv_heads, [&](int64_t h, int /*thread*/) {
      Choose(step, h / kv_heads, static_cast<int>(h % kv_heads), &heads_[h]);
    });
    ScanChosen(step, bytes_read);
  }

 private:
  // One KV head of one query.
  struct Head {
    std::vector<float> shares;      // [R, n_pages]
    std::vector<float> pooled;      // [n_pages]
    std::vector<float> log_totals;  // [R]
    std::vector<int64_t> chosen;    // pages, ascending
    std::vector<PageId> ids;
    std::vector<float> max, sum;  // [R, chosen]
  };

  void Choose(const LayerStep& step, int64_t query, int kv_head, Head* head) const {
    const PagedKv& kv = step.queries[query].kv;
    const int group = step.params.query_heads / kv.layout->kv_heads;
    const PageMasses masses =
        step.masses[query].From(static_cast<int64_t>(kv_head) * group, kv.layout->slots);
    head->shares.resize(group * masses.stride);
    head->pooled.resize(masses.n_pages);
    head->log_totals.resize(group);
    PageShares(masses, group, head->shares.data(), head->pooled.data(), head->log_totals.data());
    // Shares that are not finite have no order; then every page is scanned, and noticed there.
    const bool ranked = std::all_of(head->pooled.begin(), head->pooled.end(),
                                    [](float share) { return share >= 0; });
    head->chosen = TopFloatIndices(head->pooled, ranked ? n_pages_ : masses.n_pages);
    head->ids.clear();
    for (int64_t page : head->chosen) head->ids.push_back(kv.pages[page]);
    head->max.resize(group * head->chosen.size());
    head->sum.resize(head->max.size());
  }

  void ScanChosen(const LayerStep& step, int64_t* bytes_read) {
    const PageLayout& layout = *step.queries[0].kv.layout;
    const int group = step.params.query_heads / layout.kv_heads;
    queries_.clear();
    for (size_t h = 0; h < heads_.size(); ++h) {
      const LayerQuery& query = step.queries[h / layout.kv_heads];
      const auto kv_head = static_cast<int>(h % layout.kv_heads);
      PagedKv kv = query.kv;
      kv.pages = heads_[h].ids;
      kv.n_tokens = std::ssize(heads_[h].ids) * layout.slots;
      queries_.push_back({.q = query.q + static_cast<int64_t>(kv_head) * group * layout.head_dim,
                          .kv = kv,
                          .masses = {.n_pages = std::ssize(heads_[h].ids),
                                     .stride = std::ssize(heads_[h].ids),
                                     .max = heads_[h].max.data(),
                                     .sum = heads_[h].sum.data()},
                          .first_head = kv_head,
                          .n_heads = 1});
    }
    SketchScan(*step.pool, queries_, step.params, bits_, workspace_, bytes_read);
    for (size_t h = 0; h < heads_.size(); ++h) {
      const PageMasses masses = step.masses[h / layout.kv_heads].From(
          static_cast<int64_t>(h % layout.kv_heads) * group, layout.slots);
      const Head& head = heads_[h];
      const size_t n = head.chosen.size();
      for (int r = 0; r < group; ++r) {
        float* max = masses.max + r * masses.stride;
        float* sum = masses.sum + r * masses.stride;
        std::fill_n(max, masses.n_pages, kNoMass);
        std::fill_n(sum, masses.n_pages, 0.0f);
        for (size_t i = 0; i < n; ++i) {
          max[head.chosen[i]] = head.max[r * n + i];
          sum[head.chosen[i]] = head.sum[r * n + i];
        }
      }
    }
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
