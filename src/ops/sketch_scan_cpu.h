// The CPU kernel of the sketch scan: one KV head over a run of pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/page_planes.h"
#include "ops/sketch_scan.h"

namespace winnow {

struct SketchScanTask {
  const PagedKv* kv = nullptr;
  const SketchFormat* format = nullptr;
  Plane plane = Plane::kKeys4;
  int head = 0;  // KV head
  int64_t begin_page = 0;
  int64_t end_page = 0;
  int group_heads = 0;       // R
  const float* q = nullptr;  // [R, P], scaled, padding zero
  PageMasses masses;         // of this KV head's R query heads
};

void SketchScanCpu(const SketchScanTask& task);

}  // namespace winnow
