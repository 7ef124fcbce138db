// Attention over pages each of which stands for its tokens by their mean key and mean value.
#pragma once

#include <cstdint>
#include <span>

#include "kv/sequence_kv.h"

namespace winnow {

struct CentroidTask {
  const PagedKv* kv = nullptr;  // its layout has kKeyMean and kValueMean
  int kv_head = 0;
  std::span<const int32_t> pages;  // full ones, at least one
  const float* q = nullptr;        // [D] of one query head
  float scale = 1;
  float* out = nullptr;       // [D]
  float* log_mass = nullptr;  // of one number
};

// Floats of the workspace for `n_pages` pages.
int64_t CentroidWorkspaceFloats(const PageLayout& layout, int64_t n_pages);

// The state of one query head: masses G·e^{scale·q·k̄}, values v̄. NaN in, NaN out.
void PageCentroids(const CentroidTask& task, std::span<float> workspace);

}  // namespace winnow
