// The policies of one arm for decode, made once an arm and engine.
#pragma once

#include <memory>

#include "policy/completion_gates.h"
#include "policy/residual/residual.h"
#include "policy/select/read_rule.h"
#include "policy/select/selector.h"

namespace winnow {

struct DecodePolicy {
  ReadRule rule;
  std::unique_ptr<Selector> selector;
  std::unique_ptr<ResidualEstimator> residual;  // null: what is not read is dropped
  CompletionGates gates;                        // where it abstains
  bool certify = true;                          // write down the unread mass

  // What the pages have to keep.
  PlaneSet planes() const {
    PlaneSet planes = selector->planes();
    if (residual != nullptr) planes.Add(residual->planes());
    return planes;
  }
  bool wants_weights() const { return residual != nullptr && residual->weight_bits() > 0; }
};

}  // namespace winnow
