#include "ops/sketch_error.h"

#include "ops/sketch_error_cpu.h"
#include "ops/sketch_scan_cpu.h"

namespace winnow {

void SketchErrors(ThreadPool& pool, std::span<const PageScanQuery> queries,
                  const DecodeAttentionParams& params, int bits, PageScanWorkspace& workspace,
                  int64_t* bytes_read) {
  if (queries.empty()) return;
  const SketchFormat format(*queries[0].kv.layout, bits);
  const int64_t n_pages = ScanSketches(pool, queries, params, format, workspace, SketchErrorsCpu);
  if (bytes_read != nullptr) *bytes_read += n_pages * static_cast<int64_t>(format.grid_bytes);
}

}  // namespace winnow
