#include "ops/sketch_scan.h"

#include "core/check.h"
#include "ops/sketch_scan_cpu.h"

namespace winnow {

int64_t ScanSketches(ThreadPool& pool, std::span<const PageScanQuery> queries,
                     const DecodeAttentionParams& params, const SketchFormat& format,
                     PageScanWorkspace& workspace, SketchKernel* kernel) {
  const Plane plane = KeySketchPlane(format.bits);
  WINNOW_CHECK(queries[0].kv.layout->planes.Has(plane), "the pages have no sketch of {} bits",
               format.bits);
  return ScanPages(pool, queries, params, workspace,
                   [&](const PageScanTask& task) { kernel(task, plane, format); });
}

void SketchScan(ThreadPool& pool, std::span<const PageScanQuery> queries,
                const DecodeAttentionParams& params, int bits, PageScanWorkspace& workspace,
                int64_t* bytes_read) {
  if (queries.empty()) return;
  const SketchFormat format(*queries[0].kv.layout, bits);
  const int64_t n_pages = ScanSketches(pool, queries, params, format, workspace, SketchScanCpu);
  if (bytes_read != nullptr) *bytes_read += n_pages * static_cast<int64_t>(format.scan_bytes());
}

}  // namespace winnow
