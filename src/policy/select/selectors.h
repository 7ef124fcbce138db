// The makers of all selectors: one file each, one line in the registry.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ops/summary_scan.h"
#include "policy/select/selector.h"

namespace winnow {

// Each reads its own parameters and throws Error(kUsage) for what it cannot take.
std::unique_ptr<Selector> MakeSketchSelector(Params& params);   // bits=4
std::unique_ptr<Selector> MakeCascadeSelector(Params& params);  // summary=meanstd, P=64, bits=4
std::unique_ptr<Selector> MakeVashista(Params& params);         // summary=mean, Kc=128, P, super
std::unique_ptr<Selector> MakeMeanStdSelector(Params& params);
std::unique_ptr<Selector> MakeQuestSelector(Params& params);
// bits=4, tau=1, zeta=0.5, z_min=0.05, quota
std::unique_ptr<Selector> MakeEntroKvSelector(Params& params);
std::unique_ptr<Selector> MakeExactSelector(Params& params);
std::unique_ptr<Selector> MakeOracleSelector(Params& params);
std::unique_ptr<Selector> MakeRecentSelector(Params& params);
std::unique_ptr<Selector> MakeRandomSelector(Params& params);  // seed=0
std::unique_ptr<Selector> MakeAllSelector(Params& params);

// For their use: what scans all full pages of every query of the step first, and the parameter
// `summary`.
class ScanningSelector : public Selector {
 public:
  void Score(const LayerStep& step, int64_t* bytes_read) override {
    queries_.clear();
    for (size_t i = 0; i < step.queries.size(); ++i) {
      queries_.push_back(
          {.q = step.queries[i].q, .kv = step.queries[i].kv, .masses = step.masses[i]});
    }
    if (!queries_.empty()) Scan(step, bytes_read);
  }

 protected:
  // Of `queries_`, which hold all pages of all queries, at least one.
  virtual void Scan(const LayerStep& step, int64_t* bytes_read) = 0;

  std::vector<PageScanQuery> queries_;
  PageScanWorkspace workspace_;
};
SummaryScore ParseSummary(Params& params, std::string_view fallback);
// super=64: super-pages whose pages are looked at (SummaryRouter)
int64_t ParseSuperPages(Params& params);

}  // namespace winnow
