// What a removal can cost a single attention row, and the row's output, given what it costs the
// pooled one (EntroPrefill 4.1). In double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

struct DeletionEnvelope {
  double pooled_removed = 0;  // q = μ(E)
  double removed = 0;         // η = a(E)
  double divergence = 0;      // D_χ²(a‖μ) (11)
  double divergence_cap = 0;  // 1/ω − 1
  double ratio_term = 0;      // q/ω
  double divergence_term = 0;
  double bound = 0;  // of η: the least of the two terms and 1 (12)
};

// (11), (12) of a row a [T] that the pool μ [T] contains with coefficient ω in (0, 1]. removed [T]:
// 1 for tokens of E. Throws Error(kInput) for another ω, or spans of other lengths.
DeletionEnvelope EnvelopeOf(std::span<const double> row, std::span<const double> pooled,
                            double omega, std::span<const uint8_t> removed);

// Likewise for the worst row of all: min{1, H·W·q/ζ} for single observers' rows; W = 1 for rows
// averaged over observers (Theorem 4.1).
double WorstRowBound(double pooled_removed, int64_t n_heads, int64_t n_observers, double zeta);

struct RowOutputChange {
  std::vector<double> output;  // o [D]
  std::vector<double> retained;  // o_R [D], normalised by the weight that is retained, not by 1 − η
  double error = 0;              // ‖o − o_R‖; NaN if nothing is retained
  double bound = 0;              // 2·V·η, V the largest ‖v_j‖ (Lemma 4.2)
};

// (13) of a row a [T] over values [T, D].
RowOutputChange OutputChangeOf(std::span<const double> row, TensorView<const double, 2> values,
                               std::span<const uint8_t> removed);

}  // namespace winnow
