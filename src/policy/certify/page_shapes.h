// What the summaries of a layer's pages, as their planes hold them, say of the logits of what was
// not read.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/certify/certifier.h"
#include "policy/certify/mgf_bounds.h"
#include "policy/certify/summary.h"

namespace winnow {

// The planes that they are read from.
PlaneSet PageShapePlanes();

// Of one KV head; the rounding of the stored figures is part of them.
struct PageShapes {
  std::vector<std::vector<double>> q;  // [R][D], scaled
  std::vector<double> magnitude;       // [R] >= Σ_c |q_c·k_c| for every key of the layer
  std::vector<LogitShape> shapes;      // [R, unread]

  // Returns the bytes read.
  int64_t Load(const LayerStep& step, const ReadHead& head);

 private:
  PageSummary summary_;
  std::vector<double> largest_;  // [D]
};

}  // namespace winnow
