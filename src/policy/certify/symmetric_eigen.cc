#include "policy/certify/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {
namespace {

// Zeroes entries (p, q) and (q, p) by a rotation of rows and columns p and q.
void Rotate(std::span<double> a, size_t order, size_t p, size_t q) {
  const double off = a[p * order + q];
  if (off == 0) return;
  const double theta = (a[q * order + q] - a[p * order + p]) / (2 * off);
  const double tangent = std::copysign(1.0, theta) / (std::abs(theta) + std::hypot(theta, 1.0));
  const double cosine = 1 / std::hypot(tangent, 1.0);
  const double sine = tangent * cosine;
  for (size_t k = 0; k < order; ++k) {
    const double kp = a[k * order + p];
    const double kq = a[k * order + q];
    a[k * order + p] = cosine * kp - sine * kq;
    a[k * order + q] = sine * kp + cosine * kq;
  }
  for (size_t k = 0; k < order; ++k) {
    const double pk = a[p * order + k];
    const double qk = a[q * order + k];
    a[p * order + k] = cosine * pk - sine * qk;
    a[q * order + k] = sine * pk + cosine * qk;
  }
}

double LargestOffDiagonal(std::span<const double> a, size_t order) {
  double largest = 0;
  for (size_t i = 0; i < order; ++i) {
    for (size_t j = 0; j < i; ++j) largest = std::max(largest, std::abs(a[i * order + j]));
  }
  return largest;
}

double GershgorinBound(std::span<const double> a, size_t order) {
  double bound = 0;
  for (size_t i = 0; i < order; ++i) {
    double row = a[i * order + i];
    for (size_t j = 0; j < order; ++j) row += j == i ? 0 : std::abs(a[i * order + j]);
    bound = std::max(bound, row);
  }
  return bound;
}

}  // namespace

double LargestEigenvalue(std::span<double> matrix, size_t order) {
  WINNOW_CHECK(matrix.size() == order * order);
  double trace = 0;
  double probe = 0;
  for (size_t i = 0; i < order; ++i) trace += matrix[i * order + i];
  for (double x : matrix) probe += 0 * x;
  if (!std::isfinite(probe) || !std::isfinite(trace)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  // Convergence is quadratic: six to ten sweeps in practice. Stopping early only loosens.
  constexpr int kMaxSweeps = 40;
  const double small = trace * std::numeric_limits<double>::epsilon() / 4;
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    if (LargestOffDiagonal(matrix, order) * static_cast<double>(order) <= small) break;
    for (size_t p = 0; p + 1 < order; ++p) {
      for (size_t q = p + 1; q < order; ++q) Rotate(matrix, order, p, q);
    }
  }
  return GershgorinBound(matrix, order);
}

}  // namespace winnow
