#include "ops/sketch_scan.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "ops/sketch_scan_cpu.h"

namespace winnow {
namespace {

// [n_heads, 16] of q [n_heads, D], which is to be scaled: the largest |q_c| of each group.
void LargestOfGroups(const float* q, int64_t n_heads, int64_t dim, int group_shift, float scale,
                     float* largest) {
  const int64_t width = int64_t{1} << group_shift;
  for (int64_t head = 0; head < n_heads; ++head, q += dim) {
    for (int64_t group = 0; group < int64_t{SketchFormat::kStepGroups}; ++group) {
      float of_group = 0;
      const int64_t end = std::min((group + 1) * width, dim);
      for (int64_t c = group * width; c < end; ++c) of_group = std::max(of_group, std::abs(q[c]));
      *largest++ = of_group * std::abs(scale);
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
  const PageLayout& layout = *queries[0].kv.layout;
  const int64_t group = params.query_heads / layout.kv_heads;
  const int64_t stride = params.query_heads * int64_t{SketchFormat::kStepGroups};
  workspace.largest_q.Resize(std::ssize(queries) * stride);
  for (int64_t i = 0; i < std::ssize(queries); ++i) {
    LargestOfGroups(queries[i].q, HeadsOf(queries[i]) * group, layout.head_dim,
                    SketchFormat::GroupShift(format.dim), params.scale,
                    workspace.largest_q.data() + i * stride);
  }
  return ScanPages(pool, queries, params, workspace, [&](const PageScanTask& task) {
    kernel(task, plane, format, workspace.largest_q.data() + task.query * stride);
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
