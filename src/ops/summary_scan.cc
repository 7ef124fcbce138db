#include "ops/summary_scan.h"

#include "core/check.h"
#include "ops/summary_scan_cpu.h"

namespace winnow {

PlaneSet SummaryPlanes(SummaryScore score) {
  switch (score) {
    case SummaryScore::kMean:
      return {Plane::kKeyMean};
    case SummaryScore::kMeanStd:
      return {Plane::kKeyMean, Plane::kKeyDeviation};
    case SummaryScore::kBox:
      return {Plane::kKeyBox};
  }
  WINNOW_CHECK(false, "unknown summary {}", static_cast<int>(score));
}

void SummaryScan(ThreadPool& pool, std::span<const PageScanQuery> queries,
                 const DecodeAttentionParams& params, SummaryScore score,
                 PageScanWorkspace& workspace, int64_t* bytes_read) {
  if (queries.empty()) return;
  const PageLayout& layout = *queries[0].kv.layout;
  WINNOW_CHECK(layout.planes.Contains(SummaryPlanes(score)), "the pages lack the summary");
  const int64_t n_pages = ScanPages(
      pool, queries, params, workspace,
      [&](const PageScanTask& task) { SummaryScanCpu(task, score); },
      [](int64_t /*query*/, const float* /*rows*/, int64_t /*n_rows*/) {});
  if (bytes_read == nullptr) return;
  const int64_t rows = score == SummaryScore::kMean ? 1 : 2;
  *bytes_read += n_pages * rows * static_cast<int64_t>(layout.KeyRowBytes());
}

void PageShares(const PageMasses& masses, int group_heads, float* shares, float* pooled,
                float* log_totals) {
  PageSharesCpu(masses, group_heads, shares, pooled, log_totals);
}

}  // namespace winnow
