// The makers of all selectors: one file each, one line in the registry.
#pragma once

#include <memory>

#include "ops/summary_scan.h"
#include "policy/select/selector.h"

namespace winnow {

// Each reads its own parameters and throws Error(kUsage) for what it cannot take.
std::unique_ptr<Selector> MakeSketchSelector(Params& params);   // bits=4
std::unique_ptr<Selector> MakeCascadeSelector(Params& params);  // summary=meanstd, P=64, bits=4
std::unique_ptr<Selector> MakeVashista(Params& params);         // summary=mean
std::unique_ptr<Selector> MakeMeanStdSelector(Params& params);
std::unique_ptr<Selector> MakeQuestSelector(Params& params);
std::unique_ptr<Selector> MakeOracleSelector(Params& params);
std::unique_ptr<Selector> MakeRecentSelector(Params& params);
std::unique_ptr<Selector> MakeRandomSelector(Params& params);  // seed=0
std::unique_ptr<Selector> MakeAllSelector(Params& params);

// For their use: a scan of all full pages of every query of the step, and the parameter `summary`.
void ScanAllPages(const LayerStep& step, std::vector<PageScanQuery>* queries);
SummaryScore ParseSummary(Params& params, std::string_view fallback);

}  // namespace winnow
