// The CPU kernel of the bounds of sketched masses.
#pragma once

#include "ops/page_planes.h"
#include "ops/page_scan.h"

namespace winnow {

void SketchErrorsCpu(const PageScanTask& task, Plane plane, const SketchFormat& format);

}  // namespace winnow
