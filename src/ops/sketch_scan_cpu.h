// The CPU kernel of the sketch scan.
#pragma once

#include "ops/page_planes.h"
#include "ops/page_scan.h"

namespace winnow {

void SketchScanCpu(const PageScanTask& task, Plane plane, const SketchFormat& format);

}  // namespace winnow
