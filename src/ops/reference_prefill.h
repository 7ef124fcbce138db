// Plain double oracles of prefill pruning that only tests, fixtures and `winnow diagnose` need: a
// tiny pre-normalised transformer (EntroPrefill 20), its normalisers' Jacobians (34), and the
// counterexample of Appendix B.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow::reference {

enum class Normaliser : uint8_t { kLayer, kRms };
enum class TinyActivation : uint8_t { kRelu, kTanh };

// N(x) of (34): γ ⊙ z/√(‖z‖²/d + ε) + β with z = x − mean x; RMS: z = x and no β. x, gamma [d];
// beta [d] or empty.
std::vector<double> Normalise(Normaliser kind, std::span<const double> x,
                              std::span<const double> gamma, std::span<const double> beta,
                              double epsilon);
// J_N(x) of (34), [d, d].
std::vector<double> NormaliserJacobian(Normaliser kind, std::span<const double> x,
                                       std::span<const double> gamma, double epsilon);

// Matrices [rows, columns] row-major, y = W x + b.
struct TinyBlock {
  std::vector<double> wq, bq;  // [H, D, E], [H, D]
  std::vector<double> wk, bk;  // [G, D, E], [G, D]
  std::vector<double> wv, bv;
  std::vector<double> output;          // [E, H·D]
  std::vector<double> gamma1, beta1;   // [E] before attention
  std::vector<double> gamma2, beta2;   // [E] before the MLP W₂ act(W₁ x + b₁) + b₂
  std::vector<double> w1, b1, w2, b2;  // [F, E], [F], [E, F], [E]
};

struct TinyModel {
  int64_t hidden = 0;       // E
  int64_t query_heads = 0;  // H
  int64_t kv_heads = 0;     // G
  int64_t head_dim = 0;     // D
  int64_t feed_forward = 0;
  Normaliser norm = Normaliser::kRms;
  TinyActivation activation = TinyActivation::kRelu;
  double epsilon = 0;
  double rope_base = 10000;  // halves: pairs (i, i + D/2)
  std::vector<TinyBlock> blocks;
};

struct TinyRun {
  std::vector<std::vector<double>> states;     // [n + 1][T, E], the input first
  std::vector<std::vector<double>> attention;  // [n][H, T, T], rows of queries, 0 where masked
};
// Blocks `first` (from 0) to the last over rows x [T, E] at `positions` [T], row t attending to
// rows 0..t.
TinyRun RunTiny(const TinyModel& model, size_t first, std::span<const double> x,
                std::span<const int64_t> positions);

// Both trajectories of Theorem 6.2 and how far apart they are.
struct TinyPruning {
  TinyRun full;                     // all blocks over all rows
  TinyRun pruned;                   // blocks `accepted` to the last over the retained rows
  std::vector<double> differences;  // ‖X^l|_R − Y^l‖max,2 of states `accepted` to the last
};
// x [T, E]; `retained` are row numbers, ascending; the first `accepted` blocks see all rows.
TinyPruning PruneTiny(const TinyModel& model, std::span<const double> x,
                      std::span<const int64_t> positions, std::span<const int64_t> retained,
                      size_t accepted);

// η^ref of (23): the largest Σ_{j∈E} A_uj over retained rows u, by head; attention [H, T, T].
std::vector<double> LargestRemovedMass(TensorView<const double, 3> attention,
                                       std::span<const int64_t> retained,
                                       std::span<const int64_t> removed);

// Appendix B: one chunk of two equal pages of b tokens with masses 1 − α and α, uniform inside.
struct PagePartition {
  double chunk = 0;      // Φ₂ (37)
  double mean_page = 0;  // mean of Ψ (38)
};
PagePartition TwoPageExample(double alpha, int64_t page_tokens);

}  // namespace winnow::reference
