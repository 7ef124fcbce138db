// The CPU kernel of the sketch scan.
#pragma once

#include "ops/page_planes.h"
#include "ops/page_scan.h"

namespace winnow {

// Of a task and largest_q [n_heads, R, 16], the largest |q_c| of each of the groups of channels
// that share a scale (ops/page_planes.h).
using SketchKernel = void(const PageScanTask& task, Plane plane, const SketchFormat& format,
                          const float* largest_q);
SketchKernel SketchScanCpu;

// Runs a kernel over the key sketches of every query's pages, at least one query. Returns the
// pages, summed over KV heads.
int64_t ScanSketches(ThreadPool& pool, std::span<const PageScanQuery> queries,
                     const DecodeAttentionParams& params, const SketchFormat& format,
                     PageScanWorkspace& workspace, SketchKernel* kernel);

}  // namespace winnow
