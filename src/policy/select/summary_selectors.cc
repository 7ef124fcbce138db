#include "ops/summary_scan.h"
#include "policy/select/selectors.h"

namespace winnow {
namespace {

class SummarySelector : public ScanningSelector {
 public:
  explicit SummarySelector(SummaryScore score) : score_(score) {}
  PlaneSet planes() const override { return SummaryPlanes(score_); }
  // The box only bounds from above.
  bool estimates_mass() const override { return score_ != SummaryScore::kBox; }

 protected:
  void Scan(const LayerStep& step, int64_t* bytes_read) override {
    SummaryScan(*step.pool, queries_, step.params, score_, workspace_, bytes_read);
  }

 private:
  SummaryScore score_;
};

}  // namespace

SummaryScore ParseSummary(Params& params, std::string_view fallback) {
  const std::string name = params.Choice("summary", fallback, {"mean", "meanstd", "box"});
  return name == "mean"      ? SummaryScore::kMean
         : name == "meanstd" ? SummaryScore::kMeanStd
                             : SummaryScore::kBox;
}

std::unique_ptr<Selector> MakeVashista(Params& params) {
  return std::make_unique<SummarySelector>(ParseSummary(params, "mean"));
}

std::unique_ptr<Selector> MakeMeanStdSelector(Params& /*params*/) {
  return std::make_unique<SummarySelector>(SummaryScore::kMeanStd);
}

std::unique_ptr<Selector> MakeQuestSelector(Params& /*params*/) {
  return std::make_unique<SummarySelector>(SummaryScore::kBox);
}

}  // namespace winnow
