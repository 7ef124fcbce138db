#include "ops/sketch_scan.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "ops/sketch_scan_cpu.h"

namespace winnow {
namespace {

// [n_rows, 16] of q [n_rows, P]: the largest |q_c| of each group, 0 of none.
void LargestOfGroups(const float* q, int64_t n_rows, int64_t dim, float* largest) {
  const int64_t width = int64_t{1} << SketchFormat::GroupShift(dim);
  std::fill_n(largest, n_rows * int64_t{SketchFormat::kStepGroups}, 0.0f);
  for (int64_t row = 0; row < n_rows; ++row, largest += SketchFormat::kStepGroups) {
    for (int64_t first = 0; first < dim; first += width) {
      float of_group = 0;
      const int64_t end = std::min(first + width, dim);
      for (int64_t c = first; c < end; ++c)
        of_group = std::max(of_group, std::abs(q[row * dim + c]));
      largest[first / width] = of_group;
    }
  }
}

}  // namespace

int64_t ScanSketches(ThreadPool& pool, std::span<const PageScanQuery> queries,
                     const DecodeAttentionParams& params, const SketchFormat& format,
                     PageScanWorkspace& workspace, SketchKernel* kernel) {
  const Plane plane = KeySketchPlane(format.bits);
  WINNOW_CHECK(queries[0].kv.layout->planes.Has(plane), "the pages have no sketch of {} bits",
               format.bits);
  const int64_t stride = params.query_heads * int64_t{SketchFormat::kStepGroups};
  workspace.largest_q.Resize(std::ssize(queries) * stride);
  float* largest_q = workspace.largest_q.data();
  return ScanPages(
      pool, queries, params, workspace,
      [&](const PageScanTask& task) {
        kernel(task, plane, format, largest_q + task.query * stride);
      },
      [&](int64_t query, const float* rows, int64_t n_rows) {
        LargestOfGroups(rows, n_rows, static_cast<int64_t>(format.dim), largest_q + query * stride);
      });
}

void SketchScan(ThreadPool& pool, std::span<const PageScanQuery> queries,
                const DecodeAttentionParams& params, int bits, PageScanWorkspace& workspace,
                int64_t* bytes_read) {
  if (queries.empty()) return;
  const SketchFormat format(*queries[0].kv.layout, bits);
  const int64_t n_pages = ScanSketches(pool, queries, params, format, workspace, SketchScanCpu);
  if (bytes_read != nullptr) *bytes_read += n_pages * static_cast<int64_t>(format.bytes);
}

}  // namespace winnow
