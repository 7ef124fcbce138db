// The largest eigenvalue of a small symmetric matrix, for summaries of pages.
#pragma once

#include <cstddef>
#include <span>

namespace winnow {

// matrix [order, order], symmetric and positive semidefinite; destroyed. Jacobi's rotations until
// off-diagonals are below rounding, then the largest Gershgorin bound, so that the result is never
// below the truth by more than rounding (a power iteration comes from below). NaN if an entry is
// not finite. Zero for order 0.
double LargestEigenvalue(std::span<double> matrix, size_t order);

}  // namespace winnow
