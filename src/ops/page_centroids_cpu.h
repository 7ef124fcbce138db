// The CPU kernel of attention over pages' means.
#pragma once

#include "ops/page_centroids.h"

namespace winnow {

void PageCentroidsCpu(const CentroidTask& task, float* workspace);

}  // namespace winnow
