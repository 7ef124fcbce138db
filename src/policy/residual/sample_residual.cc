#include <algorithm>
#include <numeric>

#include "core/rng.h"
#include "policy/residual/head_residual.h"
#include "policy/residual/unread_summaries.h"

namespace winnow {
namespace {

// Other draws in every layer, KV head and step, the same for the same seed.
Rng DrawsOf(uint64_t seed, int layer, int kv_head, int64_t n_tokens) {
  uint64_t state = seed;
  for (const int64_t part : {int64_t{layer}, int64_t{kv_head}, n_tokens}) {
    state = Rng(state ^ static_cast<uint64_t>(part)).Next();
  }
  return Rng(state);
}

// SampleEstimate over tokens drawn from the unread pages, clipped to what the pages' means,
// deviations and boxes allow.
class SampleResidual : public HeadResidual {
 public:
  SampleResidual(int64_t n, bool by_page, uint64_t seed) : n_(n), by_page_(by_page), seed_(seed) {}
  PlaneSet planes() const override { return UnreadSummaries::Planes(/*with_values=*/false); }

 protected:
  void Prepare(const LayerStep& step, std::span<const UnreadHead> heads,
               int64_t* bytes_read) override {
    samples_.resize(std::max(samples_.size(), heads.size()));
    step.pool->ForEach(std::ssize(heads),
                       [&](int64_t i, int /*thread*/) { Draw(step, heads[i], &samples_[i]); });
    for (size_t i = 0; i < heads.size(); ++i) {
      *bytes_read +=
          samples_[i].summary_bytes + heads[i].kv().layout->HeadBytes(samples_[i].rows.size());
    }
  }

  bool EstimateHead(const LayerStep& step, const UnreadHead& head, int query_head, float* out,
                    float* log_mass) override {
    const Sample& sample = samples_[head.slot];
    const std::vector<double> q = ScaledQuery(step, *head.source, query_head);
    std::vector<SampledStratum> strata = sample.strata;
    for (size_t s = 0; s < strata.size(); ++s) {
      const int64_t first = by_page_ ? static_cast<int64_t>(s) : 0;
      const int64_t end = by_page_ ? first + 1 : sample.summaries.size();
      LogInterval interval = sample.summaries.Interval(q, first);
      for (int64_t page = first + 1; page < end; ++page) {
        interval.Add(sample.summaries.Interval(q, page));
      }
      strata[s].interval = {interval.lo, interval.hi};
    }
    const TokenRows& rows = sample.rows;
    StoreState(SampleEstimate(q, rows.Keys(), rows.Values(), strata).state, out, log_mass);
    return true;
  }

 private:
  struct Sample {
    UnreadSummaries summaries;
    std::vector<SampledStratum> strata;  // rows drawn; intervals depend on the query head
    TokenRows rows;
    int64_t summary_bytes = 0;
  };

  void Draw(const LayerStep& step, const UnreadHead& head, Sample* sample) const {
    const PagedKv& kv = head.kv();
    const std::span<const int32_t> pages = head.unread.pages;
    const int64_t slots = kv.layout->slots;
    sample->summary_bytes = sample->summaries.Load(kv, head.kv_head, pages, /*with_values=*/false);
    sample->strata.clear();
    sample->rows = {};
    Rng rng = DrawsOf(seed_, step.layer, head.kv_head, kv.n_tokens);
    const int64_t n_strata = by_page_ ? std::ssize(pages) : 1;
    std::vector<int64_t> tokens;
    for (int64_t s = 0; s < n_strata; ++s) {
      tokens.clear();
      for (int32_t page : by_page_ ? pages.subspan(s, 1) : pages) {
        for (int64_t t = 0; t < slots; ++t) tokens.push_back(page * slots + t);
      }
      SampledStratum stratum{.size = std::ssize(tokens)};
      const int64_t wanted = std::max<int64_t>(1, n_ / n_strata);
      for (int64_t token : DrawWithoutReplacement(tokens, wanted, rng)) {
        stratum.drawn.push_back(sample->rows.size());
        sample->rows.Add(kv, head.kv_head, token);
      }
      sample->strata.push_back(std::move(stratum));
    }
  }

  int64_t n_;
  bool by_page_;
  uint64_t seed_;
  std::vector<Sample> samples_;  // [heads]
};

}  // namespace

std::unique_ptr<ResidualEstimator> MakeSampleResidual(int /*key_bits*/, Params& params) {
  const int64_t n = params.Int("n", 128, 1, int64_t{1} << 30);
  const bool by_page = params.Choice("strata", "pages", {"pages", "none"}) == "pages";
  const auto seed = static_cast<uint64_t>(params.Int("seed", 0, 0, int64_t{1} << 62));
  return std::make_unique<SampleResidual>(n, by_page, seed);
}

}  // namespace winnow
