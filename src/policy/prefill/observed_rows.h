// Full attention rows as the observation of a layer: for tests and reference numbers. The engine
// never has whole rows of all observers.
#pragma once

#include <span>
#include <vector>

#include "policy/prefill/prune_problem.h"

namespace winnow {

class ObservedRows {
 public:
  // rows [H, U, T] of the problem's observers. Throws Error(kInput) for another size.
  ObservedRows(const PruneProblem& problem, std::span<const double> rows);

  TensorView<const double, 2> mean_attention() const;  // [H, T] (2), over the proposal's observers
  TensorView<const double, 2> chunk_mass() const;      // [H * U, k]
  // With the mean in float32. Valid as long as this is.
  LayerObservation observation() const;

 private:
  int64_t n_heads_;
  int64_t n_tokens_;
  int64_t n_rows_;
  int64_t n_chunks_;
  std::vector<double> mean_;
  std::vector<float> float_mean_;
  std::vector<double> chunk_mass_;
};

}  // namespace winnow
