// Scores pages by statistics of their keys, and turns scores of pages into shares.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "ops/page_scan.h"

namespace winnow {

enum class SummaryScore : uint8_t {
  kMean,  // q·k̄ (Vashista 7.1)
  kMeanStd,  // q·k̄ + ½·Σ q_c²·σ_c²: the log mean of e^{q·k} if keys were normal in each channel
  kBox,  // Σ_c max(q_c·lo_c, q_c·hi_c): no key of the page scores higher
};

PlaneSet SummaryPlanes(SummaryScore score);

// The scores as masses: max = the score, sum = G. NaN in, NaN out.
void SummaryScan(ThreadPool& pool, std::span<const PageScanQuery> queries,
                 const DecodeAttentionParams& params, SummaryScore score,
                 PageScanWorkspace& workspace, int64_t* bytes_read);

// Shares of the pages in one KV head: shares [R, stride], each page's mass over that of all n_pages
// of the same query head, and pooled [n_pages], their sum over the R heads, by which a KV head's
// pages are ranked; log_totals [R], the log of the mass of all pages. A head whose masses are not
// finite makes every entry of both NaN for it.
void PageShares(const PageMasses& masses, int group_heads, float* shares, float* pooled,
                float* log_totals);

}  // namespace winnow
