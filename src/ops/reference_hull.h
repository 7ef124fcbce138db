// Exact Euclidean projection onto a convex hull, the oracle for sparse decode's solvers and gaps.
//
// Plain double code for tests, `winnow diagnose` and `leakage=`: it allocates and is not fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow::reference {

struct HullProjection {
  std::vector<double> weights;  // α* [M], basic: the atoms of its support are affinely independent
  bool weights_unique = false;  // no other weights give the same y*
  std::vector<double> readout;  // y* [D]
  std::vector<double> residual;     // r* = q − y* [D]
  double support_value = 0;         // h = max_j <r*, u_j>
  std::vector<double> multipliers;  // μ_j = h − <r*, u_j> >= 0 [M]
  double frank_wolfe_gap = 0;       // h − <r*, y*>: zero but for rounding

  std::vector<int64_t> support;  // I: α*_j > 0
  std::vector<int64_t> exposed;  // μ_j = 0 up to 1e-9 of D·max(D, ‖r*‖)
  double support_gap = 0;        // Δ = min μ_j off the support; +inf if nothing is off it
  double exposed_gap = 0;        // the same off the exposed set: positive by construction
  // Smallest eigenvalue of UᵀU on the directions that sum to zero over the support; +inf for one
  // atom.
  double tangent_curvature = 0;
};

// argmin over the simplex of ½‖Σ α_j u_j − q‖²; atoms u_j [M, D], M >= 1, q [D]. Wolfe's algorithm
// ("Finding the nearest point in a polytope", 1976), which is finite and exact up to rounding.
// Input must be finite.
HullProjection ProjectOntoHull(TensorView<const double, 2> atoms, std::span<const double> q);

// max ‖u_i − u_j‖ of atoms [M, D].
double HullDiameter(TensorView<const double, 2> atoms);

// −Σ α_j log α_j in nats.
double Entropy(std::span<const double> weights);

}  // namespace winnow::reference
