// Scores pages by a low-bit copy of their keys: the first stage of sparse decode.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "ops/page_scan.h"

namespace winnow {

// q·k̂ of every token of every query's pages, summed to masses. A key sketch of 4 or 2 bits is
// multiplied in integers where the processor has byte products: the query times the steps is
// rounded to 127 levels a page and head, of a bound of the largest product: the largest |q_c| times
// the scale of the steps of some group of channels. That adds about a tenth to the sketch's own
// error, and more where a group's queries and steps are large in different channels; SketchErrors
// bounds both. NaN in, NaN masses out. Adds the bytes that it reads to `bytes_read`, if given.
void SketchScan(ThreadPool& pool, std::span<const PageScanQuery> queries,
                const DecodeAttentionParams& params, int bits, PageScanWorkspace& workspace,
                int64_t* bytes_read);

}  // namespace winnow
