// Layers for tests of certificates: pages with every plane that a certifier reads.
#pragma once

#include <memory>

#include "ops/paged_layer_test.h"
#include "policy/arm.h"

namespace winnow::testing {

inline constexpr LayerShape kCertifiedShape{.kv_heads = 2, .group = 3, .dim = 64, .slots = 32};

inline std::unique_ptr<PagedLayer> NewCertifiedLayer(uint64_t seed, int64_t n_tokens,
                                                     DType dtype = DType::kF32) {
  static const PlaneSet kPlanes =
      ArmPlanes({"select=sketch,bits=4,certify=sketch,bits=8", "select=sketch,bits=2",
                 "select=sketch,residual=sketch", "certify=deterministic"});
  LayerShape shape = kCertifiedShape;
  shape.n_tokens = n_tokens;
  return std::make_unique<PagedLayer>(shape, kPlanes, dtype, seed);
}

}  // namespace winnow::testing
