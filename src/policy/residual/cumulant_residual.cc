#include <numeric>

#include "policy/residual/head_residual.h"
#include "policy/residual/unread_summaries.h"

namespace winnow {
namespace {

// CumulantEstimate over the stored means and deviations, clipped to what they and the box allow.
class CumulantResidual : public HeadResidual {
 public:
  PlaneSet planes() const override { return UnreadSummaries::Planes(/*with_values=*/true); }

 protected:
  void Prepare(const LayerStep& step, std::span<const UnreadHead> heads,
               int64_t* bytes_read) override {
    summaries_.resize(std::max(summaries_.size(), heads.size()));
    bytes_.assign(heads.size(), 0);
    step.pool->ForEach(std::ssize(heads), [&](int64_t i, int /*thread*/) {
      bytes_[i] = summaries_[i].Load(heads[i].kv(), heads[i].kv_head, heads[i].unread.pages,
                                     /*with_values=*/true);
    });
    *bytes_read += std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
  }

  bool EstimateHead(const LayerStep& step, const UnreadHead& head, int query_head, float* out,
                    float* log_mass) override {
    const UnreadSummaries& summaries = summaries_[head.slot];
    const std::vector<double> q = ScaledQuery(step, *head.source, query_head);
    std::vector<int64_t> pages(summaries.size());
    std::iota(pages.begin(), pages.end(), 0);
    std::vector<LogMassInterval> intervals;
    intervals.reserve(pages.size());
    for (int64_t page : pages) {
      const LogInterval interval = summaries.Interval(q, page);
      intervals.push_back({interval.lo, interval.hi});
    }
    StoreState(CumulantEstimate(summaries.Moments(), q, pages, intervals).state, out, log_mass);
    return true;
  }

 private:
  std::vector<UnreadSummaries> summaries_;  // [heads]
  std::vector<int64_t> bytes_;
};

}  // namespace

std::unique_ptr<ResidualEstimator> MakeCumulantResidual(int /*key_bits*/, Params& /*params*/) {
  return std::make_unique<CumulantResidual>();
}

}  // namespace winnow
