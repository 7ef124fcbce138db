#include "ops/page_centroids.h"

#include "core/check.h"
#include "ops/page_centroids_cpu.h"

namespace winnow {

int64_t CentroidWorkspaceFloats(const PageLayout& layout, int64_t n_pages) {
  constexpr int64_t kMostLanes = 16;  // scores fill whole vectors
  return 2 * static_cast<int64_t>(layout.padded_dim) +
         (n_pages + kMostLanes - 1) / kMostLanes * kMostLanes;
}

void PageCentroids(const CentroidTask& task, std::span<float> workspace) {
  const PageLayout& layout = *task.kv->layout;
  WINNOW_CHECK(!task.pages.empty() &&
               layout.planes.Contains({Plane::kKeyMean, Plane::kValueMean}) &&
               std::ssize(workspace) >= CentroidWorkspaceFloats(layout, std::ssize(task.pages)));
  PageCentroidsCpu(task, workspace.data());
}

}  // namespace winnow
