// The policies of one arm for decode, made once an arm and engine.
#pragma once

#include <memory>

#include "policy/certify/certifier.h"
#include "policy/certify/output_error.h"
#include "policy/completion_gates.h"
#include "policy/residual/residual.h"
#include "policy/select/read_rule.h"
#include "policy/select/selector.h"
#include "policy/solver/candidate_solver.h"

namespace winnow {

struct DecodePolicy {
  ReadRule rule;
  std::unique_ptr<Selector> selector;
  std::unique_ptr<ResidualEstimator> residual;  // null: what is not read is dropped
  CompletionGates gates;                        // where it abstains
  bool certify = true;                          // write down the unread mass
  std::unique_ptr<Certifier> certifier;         // null: it is an estimate
  SolverOptions solver;
  bool drop_left_out = false;  // tokens of pages that are read but do not count: dropped

  // What the pages have to keep.
  PlaneSet planes() const {
    PlaneSet planes = selector->planes();
    if (residual != nullptr) planes.Add(residual->planes());
    if (certifier != nullptr) {
      planes.Add(certifier->planes());
      planes.Add(OutputErrors::Planes());
    }
    if (selector->chooses_tokens() && !drop_left_out) planes.Add(Plane::kValueMean);
    return planes;
  }
  // Whether what is read is more than plain attention over whole pages.
  bool reads_candidates() const { return solver.projects() || selector->chooses_tokens(); }
  bool wants_weights() const { return residual != nullptr && residual->weight_bits() > 0; }
};

}  // namespace winnow
