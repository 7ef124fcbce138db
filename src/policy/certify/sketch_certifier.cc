#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/page_planes.h"
#include "ops/sketch_error.h"
#include "ops/sketch_scan.h"
#include "policy/certify/read_mass.h"

namespace winnow {
namespace {

// The mass of every unread page from a low-bit copy of its keys, with a bound of what that copy and
// the scan's arithmetic can be off: Z_p lies in Ẑ_p·e^{±ε_p}.
class SketchCertifier : public Certifier {
 public:
  // `scanned`: step.masses come from the same sketch.
  SketchCertifier(int bits, bool scanned) : bits_(bits), scanned_(scanned) {}
  PlaneSet planes() const override { return {KeySketchPlane(bits_)}; }

  void Certify(const LayerStep& step, std::span<const ReadHead> heads,
               std::span<ShareInterval> shares, int64_t* bytes_read) override {
    Prepare(step, heads);
    SketchErrors(*step.pool, error_queries_, step.params, bits_, workspace_, bytes_read);
    SketchScan(*step.pool, scan_queries_, step.params, bits_, workspace_, bytes_read);
    ForEachCertified(step, heads, shares, [&](int64_t h, std::span<ShareInterval> of_head) {
      Bound(step, heads[h], scratch_[h], of_head);
    });
  }

 private:
  struct Scratch {
    std::vector<PageId> ids;              // of the unread pages
    std::vector<float> max, sum;          // [R, unread]
    std::vector<float> error, magnitude;  // [R, n_pages]
    std::vector<double> q, largest;       // [D]
  };

  void Prepare(const LayerStep& step, std::span<const ReadHead> heads) {
    error_queries_.clear();
    scan_queries_.clear();
    if (scratch_.size() < heads.size()) scratch_.resize(heads.size());
    for (size_t h = 0; h < heads.size(); ++h) {
      const ReadHead& head = heads[h];
      if (head.unread.empty()) continue;
      const LayerQuery& query = step.queries[head.query];
      const PageLayout& layout = *query.kv.layout;
      const int group = step.params.query_heads / layout.kv_heads;
      const int64_t n_pages = step.masses[head.query].n_pages;
      Scratch& scratch = scratch_[h];
      scratch.error.resize(group * n_pages);
      scratch.magnitude.resize(group * n_pages);
      PageScanQuery scan{
          .q = query.q + static_cast<int64_t>(head.kv_head) * group * layout.head_dim,
          .kv = query.kv,
          .masses = {.n_pages = n_pages,
                     .stride = n_pages,
                     .max = scratch.error.data(),
                     .sum = scratch.magnitude.data()},
          .first_head = head.kv_head,
          .n_heads = 1};
      error_queries_.push_back(scan);
      if (scanned_) continue;
      const auto n_unread = std::ssize(head.unread);
      scratch.ids.clear();
      for (int32_t page : head.unread) scratch.ids.push_back(query.kv.pages[page]);
      scratch.max.resize(group * n_unread);
      scratch.sum.resize(group * n_unread);
      scan.kv.pages = scratch.ids;
      scan.kv.n_tokens = n_unread * layout.slots;
      scan.masses = {.n_pages = n_unread,
                     .stride = n_unread,
                     .max = scratch.max.data(),
                     .sum = scratch.sum.data()};
      scan_queries_.push_back(scan);
    }
  }

  void Bound(const LayerStep& step, const ReadHead& head, Scratch& scratch,
             std::span<ShareInterval> shares) const {
    const LayerQuery& query = step.queries[head.query];
    const auto group = static_cast<int64_t>(shares.size());
    const PageMasses& all = step.masses[head.query];
    LargestOfShortPage(query.kv, head.kv_head, &scratch.largest);
    for (int64_t r = 0; r < group; ++r) {
      LoadScaledQuery(step, head, static_cast<int>(r), &scratch.q);
      double magnitude = 0;
      for (size_t c = 0; c < scratch.q.size(); ++c) {
        magnitude += std::abs(scratch.q[c]) * scratch.largest[c];
      }
      const float* of_pages = scratch.magnitude.data() + r * all.n_pages;
      for (int64_t page = 0; page < all.n_pages; ++page) {
        if (of_pages[page] > magnitude) magnitude = of_pages[page];
      }
      const auto n_unread = std::ssize(head.unread);
      const int64_t row = (head.kv_head * group + r) * all.stride;
      const float* max = scanned_ ? all.max + row : scratch.max.data() + r * n_unread;
      const float* sum = scanned_ ? all.sum + row : scratch.sum.data() + r * n_unread;
      const float* error = scratch.error.data() + r * all.n_pages;
      const LogInterval unread = Sum(head.unread, max, sum, error);
      if (head.bounds != nullptr) {
        Describe(query.kv.layout->slots, head.unread, max, sum, error,
                 std::span(head.bounds->pages).subspan(r * n_unread, n_unread));
      }
      shares[r] = BoundShare(ReadLogMass(step, head, static_cast<int>(r), magnitude), unread);
    }
  }

  // log Σ Z_p over the unread pages. Masses are indexed by page, or in the order of `unread`.
  LogInterval Sum(std::span<const int32_t> unread, const float* max, const float* sum,
                  const float* error) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    LogInterval interval{-kInfinity, kInfinity, {StatementKind::kDeterministic}};
    double top_lo = -kInfinity;
    double top_hi = -kInfinity;
    double probe = 0;
    const auto at = [&](size_t i) { return scanned_ ? static_cast<size_t>(unread[i]) : i; };
    for (size_t i = 0; i < unread.size(); ++i) {
      const double score = max[at(i)];
      const double off = error[unread[i]];
      top_lo = std::max(top_lo, score - off);
      top_hi = std::max(top_hi, score + off);
      probe += 0 * (score + off + sum[at(i)]);
    }
    if (std::isnan(probe)) {
      interval.statement.standing = Standing::kNotFinite;
      return interval;
    }
    double lo = 0;
    double hi = 0;
    for (size_t i = 0; i < unread.size(); ++i) {
      const double score = max[at(i)];
      const double off = error[unread[i]];
      lo += sum[at(i)] * std::exp(score - off - top_lo);
      hi += sum[at(i)] * std::exp(score + off - top_hi);
    }
    const double slack = (static_cast<double>(unread.size()) + 16) *
                         std::numeric_limits<double>::epsilon() *
                         (1 + std::abs(top_lo) + std::abs(top_hi));
    interval.lo = top_lo + std::log(lo) - slack;
    interval.hi = top_hi + std::log(hi) + slack;
    return interval;
  }

  // The heaviest token of a page has a score within the error of the largest that was scanned.
  void Describe(int slots, std::span<const int32_t> unread, const float* max, const float* sum,
                const float* error, std::span<PageBound> pages) const {
    for (size_t i = 0; i < unread.size(); ++i) {
      const size_t at = scanned_ ? static_cast<size_t>(unread[i]) : i;
      const double off = error[unread[i]];
      const double log_mass = max[at] + std::log(static_cast<double>(sum[at]));
      const double slack =
          8 * std::numeric_limits<double>::epsilon() * (1 + std::abs(log_mass) + off);
      pages[i] = {log_mass - off - slack, log_mass + off + slack,
                  SpreadOfWeights(slots, std::exp(2 * off) / sum[at])};
    }
  }

  int bits_;
  bool scanned_;
  std::vector<Scratch> scratch_;  // [heads]
  std::vector<PageScanQuery> error_queries_, scan_queries_;
  PageScanWorkspace workspace_;
};

}  // namespace

std::unique_ptr<Certifier> MakeSketchCertifier(int key_bits, Params& params) {
  const int bits = std::stoi(params.Choice("bits", "8", {"2", "4", "8"}));
  return std::make_unique<SketchCertifier>(bits, bits == key_bits);
}

}  // namespace winnow
