// The CPU kernels of the summary scan and of shares.
#pragma once

#include "ops/summary_scan.h"

namespace winnow {

void SummaryScanCpu(const PageScanTask& task, SummaryScore score);
void PageSharesCpu(const PageMasses& masses, int group_heads, float* shares, float* pooled,
                   float* log_totals);

}  // namespace winnow
