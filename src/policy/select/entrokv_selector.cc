#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "ops/page_planes.h"
#include "ops/sketch_scan.h"
#include "policy/select/page_priority.h"
#include "policy/select/selectors.h"

namespace winnow {
namespace {

// EntroPrefill (29): the pages with the most important single tokens, by the attention of the
// step's own query over a low-bit copy of the keys. Its masses are the sketch's.
class EntroKvSelector : public ScanningSelector {
 public:
  EntroKvSelector(int bits, const HeadPooling& pooling, bool by_quota)
      : bits_(bits), pooling_(pooling), by_quota_(by_quota) {}
  PlaneSet planes() const override { return {KeySketchPlane(bits_)}; }
  int weight_bits() const override { return bits_; }
  bool chooses() const override { return true; }

  void Choose(const ReadRule& rule, const ChoiceHead& head, PageChoice* choice) override {
    const PageScanQuery& query = queries_[head.query];
    const int slots = query.kv.layout->slots;
    const PageMasses masses =
        query.masses.From(static_cast<int64_t>(head.kv_head) * head.group, slots);
    std::vector<double> attention(head.group * masses.n_pages * slots);
    const TensorView<const double, 2> a(attention.data(), {head.group, masses.n_pages * slots});
    for (int r = 0; r < head.group; ++r) {
      AttentionOf(masses, head.shares + r * masses.stride, r, slots,
                  attention.data() + r * masses.n_pages * slots);
    }
    std::vector<double> weights(head.group);
    PoolingWeights(a, rule.sinks, pooling_, weights);
    // Pages that are not full, hence always read, count among the protected ones.
    std::vector<double> priorities(masses.n_pages);
    PagePriorities(a, weights, slots, priorities);
    priorities.resize(query.kv.pages.size());
    const MiddlePages& middle = head.middle;
    const int64_t n_protected = std::ssize(priorities) - (middle.end - middle.begin);
    const int64_t quota = (middle.budget + slots - 1) / slots + (by_quota_ ? 0 : n_protected);
    *choice = {};
    choice->not_finite = !std::isfinite(priorities[0]);
    if (choice->not_finite) return;
    std::vector<bool> retained(priorities.size());
    for (int64_t page : RetainedPages(priorities, middle.begin, middle.end, quota)) {
      retained[page] = true;
    }
    for (int64_t page = middle.begin; page < middle.end; ++page) {
      (retained[page] ? choice->read : choice->unread).push_back(static_cast<int32_t>(page));
    }
  }

 protected:
  void Scan(const LayerStep& step, int64_t* bytes_read) override {
    size_t n_weights = 0;
    for (const PageScanQuery& query : queries_) {
      n_weights += step.params.query_heads * query.masses.stride * query.kv.layout->slots;
    }
    weights_.Resize(n_weights);
    uint8_t* weights = weights_.data();
    for (PageScanQuery& query : queries_) {
      if (query.masses.weights != nullptr) continue;
      query.masses.weights = weights;
      weights += step.params.query_heads * query.masses.stride * query.kv.layout->slots;
    }
    SketchScan(*step.pool, queries_, step.params, bits_, workspace_, bytes_read);
  }

 private:
  // Attention of query head `r` over the tokens of full pages, [n_pages · G]: a page's share, split
  // as its tokens' weights say.
  static void AttentionOf(const PageMasses& masses, const float* shares, int r, int slots,
                          double* attention) {
    for (int64_t page = 0; page < masses.n_pages; ++page) {
      const uint8_t* weights = masses.weights + (r * masses.stride + page) * slots;
      double sum = 0;
      for (int t = 0; t < slots; ++t) sum += weights[t];
      for (int t = 0; t < slots; ++t) *attention++ = shares[page] * weights[t] / sum;
    }
  }

  int bits_;
  HeadPooling pooling_;
  bool by_quota_;
  AlignedBuffer<uint8_t> weights_;
};

}  // namespace

std::unique_ptr<Selector> MakeEntroKvSelector(Params& params) {
  const int bits = std::stoi(params.Choice("bits", "4", {"2", "4", "8"}));
  HeadPooling pooling;
  pooling.tau = params.Number("tau", pooling.tau, 1e-3, 1e3);
  pooling.zeta = params.Number("zeta", pooling.zeta, 0, 1);
  pooling.z_min = params.Number("z_min", pooling.z_min, 0, 1);
  const bool by_quota = params.Has("quota");
  if (by_quota) {
    // All pages, protected ones included, as the budget counts tokens that are not.
    const int64_t pages = params.Int("quota", 1, 1, int64_t{1} << 24);
    params.Imply("budget", fmt::format("{}", pages * kDefaultPageSlots));
  }
  return std::make_unique<EntroKvSelector>(bits, pooling, by_quota);
}

}  // namespace winnow
