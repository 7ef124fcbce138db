// Bounds the error of sketched masses, page by page: what a certificate of unread mass rests on.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "ops/page_scan.h"

namespace winnow {

// For every page and query head of the queries, from minimum, step and error of the sketch alone:
// masses.max becomes a bound of |log of the mass that SketchScan computes − log Σ e^{q·k}| over the
// page's keys, masses.sum one of Σ_c |q_c·k_c| for each of them. Both are rounded up and hold for
// the kernel as it runs on this machine:
//   min(‖q‖·‖k − k̂‖, Σ_c |q_c|·step_c/2) + its rounding.
// NaN in, NaN out. Adds the bytes that it reads to `bytes_read`, if given.
void SketchErrors(ThreadPool& pool, std::span<const PageScanQuery> queries,
                  const DecodeAttentionParams& params, int bits, PageScanWorkspace& workspace,
                  int64_t* bytes_read);

}  // namespace winnow
