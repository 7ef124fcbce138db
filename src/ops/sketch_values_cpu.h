// The CPU kernel of the residual estimate: one KV head over a run of unread pages.
#pragma once

#include <cstdint>
#include <span>

#include "ops/page_planes.h"

namespace winnow {

struct SketchValuesTask {
  const PagedKv* kv = nullptr;
  const SketchFormat* format = nullptr;
  Plane plane = Plane::kValues2;
  int head = 0;  // KV head
  std::span<const int32_t> pages;
  int group_heads = 0;               // R
  int64_t stride = 0;                // pages from one query head to the next
  const uint8_t* weights = nullptr;  // [R, stride·G]
  const float* shares = nullptr;     // [R, stride]
  float* sums = nullptr;             // [R, P]: Σ share·v̂, written
  float* totals = nullptr;           // [R]: Σ share, written
};

void SketchValuesCpu(const SketchValuesTask& task);

}  // namespace winnow
