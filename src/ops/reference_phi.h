// The loss that feature maps are trained with, in double: for tests, fixtures and diagnosis only.
#pragma once

#include <span>

namespace winnow::reference {

// Defaults are the paper's (Residual-Mass Accounting (31), as its first version reads).
struct PhiLossWeights {
  double kl = 0.99;  // λ_KL; the auxiliary terms get 1 − λ_KL
  double top = 1;    // λ_top
  double false_positive = 2;
  double partition = 4;    // λ_Z
  double margin = 8;       // Δ: logits under the teacher's maximum by more are background
  double huber = 1;        // δ, where ρ turns linear
  double temperature = 1;  // of the KL term, which is scaled by its square
};

struct PhiLoss {
  double kl = 0;              // KL(teacher ‖ student) over the tokens, times temperature²
  double top = 0;             // E ρ(r̂ − r) over r >= −Δ
  double false_positive = 0;  // E ρ(max(r̂ + Δ, 0)) over r < −Δ; 0 if there are none
  double partition = 0;       // ρ(max(log Σ e^r̂ − log Σ e^r, 0))
  double auxiliary = 0;       // the three by their weights
  double total = 0;           // λ_KL·kl + (1 − λ_KL)·auxiliary
};

// True and estimated logits [n] of one query over the middle, n >= 1; r and r̂ are both less the
// teacher's maximum.
PhiLoss ComputePhiLoss(std::span<const double> teacher, std::span<const double> student,
                       const PhiLossWeights& weights);

}  // namespace winnow::reference
