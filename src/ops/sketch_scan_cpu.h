// The CPU kernel of the sketch scan.
#pragma once

#include "ops/page_planes.h"
#include "ops/page_scan.h"

namespace winnow {

void SketchScanCpu(const PageScanTask& task, Plane plane, const SketchFormat& format);

// Runs a kernel over the key sketches of every query's pages, at least one query. Returns the
// pages, summed over KV heads.
using SketchKernel = void(const PageScanTask& task, Plane plane, const SketchFormat& format);
int64_t ScanSketches(ThreadPool& pool, std::span<const PageScanQuery> queries,
                     const DecodeAttentionParams& params, const SketchFormat& format,
                     PageScanWorkspace& workspace, SketchKernel* kernel);

}  // namespace winnow
