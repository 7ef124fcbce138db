// The CPU kernel of the bounds of sketched masses.
#pragma once

#include "ops/sketch_scan_cpu.h"

namespace winnow {

SketchKernel SketchErrorsCpu;

}  // namespace winnow
