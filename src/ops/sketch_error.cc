#include "ops/sketch_error.h"

#include "core/check.h"
#include "ops/sketch_error_cpu.h"

namespace winnow {

void SketchErrors(ThreadPool& pool, std::span<const PageScanQuery> queries,
                  const DecodeAttentionParams& params, int bits, PageScanWorkspace& workspace,
                  int64_t* bytes_read) {
  if (queries.empty()) return;
  const PageLayout& layout = *queries[0].kv.layout;
  const Plane plane = KeySketchPlane(bits);
  WINNOW_CHECK(layout.planes.Has(plane), "the pages have no sketch of {} bits", bits);
  const SketchFormat format(layout, bits);
  const int64_t n_pages =
      ScanPages(pool, queries, params, workspace,
                [&](const PageScanTask& task) { SketchErrorsCpu(task, plane, format); });
  // Minimum and step, and the line that holds the error.
  if (bytes_read != nullptr) *bytes_read += n_pages * static_cast<int64_t>(4 * format.dim + 64);
}

}  // namespace winnow
