// How far a removal of tokens in mid-prefill can move the hidden states and the first token of a
// pre-normalised transformer: sufficient constants from operator norms, and what they add up to
// (EntroPrefill 6 and Appendix A). In real arithmetic; rounding of the model's own floats is not
// covered. The bounds are usually vacuous: products of K_l over the layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

// (35) of a normaliser over `dim` features.
struct NormaliserBounds {
  double lipschitz = 0;  // ‖γ‖∞/√ε of rows, over all inputs
  double output = 0;     // bound of a row's norm
};
// LayerNorm: beta [dim]; empty without a bias. RMSNorm: the same with P = I and no beta.
NormaliserBounds ComputeNormaliserBounds(std::span<const double> gamma,
                                         std::span<const double> beta, double epsilon);

// ‖W‖ (spectral) of a small matrix, by the eigenvalues of its smaller Gram matrix; never below the
// truth by more than rounding. NaN if an entry is not finite.
double SpectralNorm(TensorView<const double, 2> matrix);

// One query head; W of the group that it shares, biases in the bounds.
struct HeadNorms {
  double query = 0;  // ‖W^Q‖, spectral
  double key = 0;
  double value = 0;
  double query_bound = 0;  // Q̄: of the norm of a query over the normalised domain
  double key_bound = 0;    // K̄
  double value_bound = 0;  // V
};

struct BlockNorms {
  double attention_lipschitz = 0;  // c_l
  double mlp_lipschitz = 0;        // c̄_l
  double mlp = 0;                  // f_l: of the MLP on the normalised domain
  double output = 0;               // ‖O_l‖
  double logit_scale = 0;          // of q·k: 1/√d in the paper
  std::vector<HeadNorms> heads;    // [H]
};

// ‖softmax(z) − softmax(z')‖₁ <= factor·‖z − z'‖∞. The paper proves 2 and claims no optimum (36);
// 1 is the best: Σ p_i|v_i − p·v| is convex in v, so largest at v = ±1, where it is 4p(1 − p).
inline constexpr double kPaperSoftmaxFactor = 2;
inline constexpr double kSharpSoftmaxFactor = 1;

struct BlockConstants {
  std::vector<double> a;  // [H] (21)
  std::vector<double> b;  // [H] (22)
  double mlp = 0;         // R_l = 1 + f_l·c̄_l
  double attention = 0;   // 1 + ‖O_l‖·√Σ b²
  double block = 0;       // K_l = R_l·attention (22)
};
BlockConstants ComputeBlockConstants(const BlockNorms& norms,
                                     double softmax_factor = kPaperSoftmaxFactor);

// e_l (23). eta [H]: the largest mass that a retained row of the full trajectory gives to what is
// removed.
double DeletionDefect(const BlockNorms& norms, double mlp_constant, std::span<const double> eta);

// ln Δ_l of the recurrence Δ_l = e_l + K_l·Δ_{l-1} behind (24), from Δ = 0 (-infinity): [n + 1] for
// n blocks, from ln e and ln K. Logarithms, since K_l of real models multiply beyond any double.
std::vector<double> PropagateDefects(std::span<const double> log_defects,
                                     std::span<const double> log_block_constants);

// z_(1) − z_(2) of the logits; at least two. NaN if one is NaN.
double DecisionMargin(std::span<const double> logits);
// Corollary 6.3: the greedy first token is the same; `logit_bound` = Λ·Δ_L (25).
bool FirstTokenCertified(double margin, double logit_bound);

// σ of (26) by the sufficient construction: the largest Σ_j [A_uj − Γ·μ_j]₊ over document tokens,
// of the rows [n, T]. mu [T] pooled attention at the pruning layer, documents [T].
double DensityRatioExcess(TensorView<const double, 2> rows, std::span<const double> mu,
                          std::span<const uint8_t> documents, double gamma);
// The smallest Γ with σ = 0: the largest A_uj/μ_j on documents. Infinity where μ_j = 0 < A_uj.
double LargestDensityRatio(TensorView<const double, 2> rows, std::span<const double> mu,
                           std::span<const uint8_t> documents);
// η^ref <= min(1, Γ·q + σ) (27), q = μ(E).
double TransferredMass(double gamma, double pooled_mass, double sigma);

}  // namespace winnow
