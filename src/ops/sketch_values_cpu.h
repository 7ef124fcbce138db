// The CPU kernel of the residual estimate: one KV head over a run of unread pages.
#pragma once

#include <cstdint>
#include <span>

#include "ops/page_planes.h"
#include "ops/page_scan.h"

namespace winnow {

struct SketchValuesTask {
  const PagedKv* kv = nullptr;
  const SketchFormat* format = nullptr;
  Plane plane = Plane::kValues2;
  int head = 0;  // KV head
  std::span<const int32_t> pages;
  int group_heads = 0;                // R
  PageMasses masses;                  // of this KV head's R query heads
  const float* references = nullptr;  // [R]: masses are taken relative to e^reference
  float* sums = nullptr;              // [R, P]: Σ mass·v̂, written
  float* totals = nullptr;            // [R]: Σ mass, written
};

void SketchValuesCpu(const SketchValuesTask& task);

}  // namespace winnow
