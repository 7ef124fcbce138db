// Priorities of chunks: sink-free collision entropy weighs the heads, their pooled attention is
// compared with an even spread over the documents (EntroPrefill 3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "policy/prefill/prune_problem.h"

namespace winnow {

struct ScoreParams {
  double z_min = 0.05;     // an eligible head has at least this mass outside of sinks
  double tau = 1;          // entropy temperature τ
  double zeta = 0.5;       // ζ in (0, 1]: what part of a group's weight is spread evenly
  double eps_s = 1e-3;     // ε_s, smoothing
  double lambda = 1;       // λ, of concentration within a chunk
  double min_mass = 0.02;  // Z_min
};

// H query heads in G groups, T tokens, k chunks. Everything is finite unless it says otherwise.
struct ChunkScores {
  bool finite = true;                   // if not, nothing below means anything
  std::vector<double> free_mass;        // z [H]: outside of sinks (3)
  std::vector<uint8_t> eligible;        // [H]: z >= z_min
  std::vector<double> collision;        // C [H] (3); NaN where not eligible
  std::vector<double> entropy;          // H2 [H], nats; likewise
  std::vector<double> share;            // v [H] (4)
  std::vector<double> weight;           // w [H] (4), before the profile's head weights
  std::vector<double> pool_share;       // [H]: of the pool, Σ = 1; w/G without head weights
  std::vector<uint8_t> group_fallback;  // [G]: no head of the group is eligible
  bool all_fallback = false;            // in every group that the pool takes from
  std::vector<double> pooled;           // μ [T] (5)
  double document_mass = 0;             // Z
  bool enough_mass = false;             // Z >= Z_min; if not, nothing below is filled
  std::vector<double> token_share;      // p [T]; 0 for protected tokens
  std::vector<double> chunk_mass;       // M [k], Σ = 1
  std::vector<double> null_mass;        // π [k]
  std::vector<double> smoothed;         // p̂ [T] (8); 0 for protected tokens
  std::vector<double> ratio;            // ℓ [k] (8)
  std::vector<double> concentration;    // κ [k] (9), in [0, 1]
  std::vector<double> score;            // S [k] (9): the lower, the sooner a chunk goes
};

// (3)-(5), (8), (9) from each head's attention averaged over the proposal's observers (2).
// mean_attention [H, T]; head_weights [H], not negative, one of them positive, or empty for the
// paper's: they multiply w_h before μ is normalised. C^(1/τ) is taken as a softmax of ln(C)/τ, as
// powers underflow at small τ.
template <typename T>
ChunkScores ScoreChunks(const PruneProblem& problem, TensorView<const T, 2> mean_attention,
                        const ScoreParams& params, std::span<const double> head_weights);

extern template ChunkScores ScoreChunks(const PruneProblem&, TensorView<const float, 2>,
                                        const ScoreParams&, std::span<const double>);
extern template ChunkScores ScoreChunks(const PruneProblem&, TensorView<const double, 2>,
                                        const ScoreParams&, std::span<const double>);

}  // namespace winnow
