#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "ops/summary_scan.h"
#include "policy/select/selectors.h"
#include "policy/select/summary_router.h"

namespace winnow {
namespace {

// Masses from a summary of every page; of the pages read, the best `candidate_tokens` by exact
// keys.
class SummarySelector : public Selector {
 public:
  explicit SummarySelector(SummaryRouter router, int64_t candidate_tokens = 0)
      : router_(std::move(router)), candidate_tokens_(candidate_tokens) {}
  PlaneSet planes() const override { return SummaryPlanes(router_.score()); }
  // The box only bounds from above.
  bool estimates_mass() const override { return router_.score() != SummaryScore::kBox; }
  int64_t candidate_tokens() const override { return candidate_tokens_; }
  void Score(const LayerStep& step, int64_t* bytes_read) override {
    router_.Scan(step, bytes_read);
  }

 private:
  SummaryRouter router_;
  int64_t candidate_tokens_;
};

}  // namespace

int64_t ParseSuperPages(Params& params) {
  // 64 of 16 pages of 32 tokens: from 64k tokens on, half of the pages or fewer are looked at.
  return params.Int("super", 64, 0, int64_t{1} << 24);
}

SummaryScore ParseSummary(Params& params, std::string_view fallback) {
  const std::string name = params.Choice("summary", fallback, {"mean", "meanstd", "box"});
  return name == "mean"      ? SummaryScore::kMean
         : name == "meanstd" ? SummaryScore::kMeanStd
                             : SummaryScore::kBox;
}

std::unique_ptr<Selector> MakeVashista(Params& params) {
  const SummaryScore summary = ParseSummary(params, "mean");
  // Of the paper's sweep (its Table 3: K_c of 64, 128, 192) the middle.
  const int64_t candidates = params.Int("Kc", 128, 0, int64_t{1} << 30);
  if (params.Has("P")) {
    for (const char* other : {"mass", "fraction"}) {
      if (!params.Has(other)) continue;
      Throw(ErrorKind::kUsage, "{}: P and {} contradict each other: one of them", params.policy(),
            other);
    }
    // The paper's P pages are a budget; one way to say it keeps equal arms equal.
    const int64_t pages = params.Int("P", 1, 1, int64_t{1} << 24);
    params.Replace("P", "budget", fmt::format("{}", pages * kDefaultPageSlots));
  }
  return std::make_unique<SummarySelector>(SummaryRouter(summary, ParseSuperPages(params)),
                                           candidates);
}

std::unique_ptr<Selector> MakeMeanStdSelector(Params& params) {
  return std::make_unique<SummarySelector>(
      SummaryRouter(SummaryScore::kMeanStd, ParseSuperPages(params)));
}

std::unique_ptr<Selector> MakeQuestSelector(Params& params) {
  return std::make_unique<SummarySelector>(
      SummaryRouter(SummaryScore::kBox, ParseSuperPages(params)));
}

}  // namespace winnow
