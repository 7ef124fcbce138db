#include "policy/prefill/envelope.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace winnow {

DeletionEnvelope EnvelopeOf(std::span<const double> row, std::span<const double> pooled,
                            double omega, std::span<const uint8_t> removed) {
  if (row.size() != pooled.size() || row.size() != removed.size()) {
    Throw(ErrorKind::kInput, "an envelope of {}, {} and {} tokens", row.size(), pooled.size(),
          removed.size());
  }
  if (!(omega > 0 && omega <= 1)) Throw(ErrorKind::kInput, "a mixture coefficient of {}", omega);
  DeletionEnvelope out;
  for (size_t j = 0; j < row.size(); ++j) {
    if (pooled[j] > 0) out.divergence += (row[j] - pooled[j]) * (row[j] - pooled[j]) / pooled[j];
    if (removed[j] == 0) continue;
    out.pooled_removed += pooled[j];
    out.removed += row[j];
  }
  const double q = out.pooled_removed;
  out.divergence_cap = 1 / omega - 1;
  out.ratio_term = q / omega;
  out.divergence_term = q + std::sqrt(out.divergence * q * std::max(0.0, 1 - q));
  out.bound = std::min({1.0, out.ratio_term, out.divergence_term});
  return out;
}

double WorstRowBound(double pooled_removed, int64_t n_heads, int64_t n_observers, double zeta) {
  return std::min(
      1.0, static_cast<double>(n_heads) * static_cast<double>(n_observers) * pooled_removed / zeta);
}

RowOutputChange OutputChangeOf(std::span<const double> row, TensorView<const double, 2> values,
                               std::span<const uint8_t> removed) {
  if (values.shape[0] != std::ssize(row) || removed.size() != row.size()) {
    Throw(ErrorKind::kInput, "an output of {} weights, {} values and {} flags", row.size(),
          values.shape[0], removed.size());
  }
  const int64_t dim = values.shape[1];
  RowOutputChange out{.output = std::vector<double>(dim, 0),
                      .retained = std::vector<double>(dim, 0)};
  double retained_mass = 0;
  double removed_mass = 0;
  double largest = 0;
  for (size_t j = 0; j < row.size(); ++j) {
    const double* v = values.row(static_cast<int64_t>(j));
    double square = 0;
    for (int64_t c = 0; c < dim; ++c) {
      square += v[c] * v[c];
      out.output[c] += row[j] * v[c];
      if (removed[j] == 0) out.retained[c] += row[j] * v[c];
    }
    largest = std::max(largest, std::sqrt(square));
    (removed[j] == 0 ? retained_mass : removed_mass) += row[j];
  }
  double error = 0;
  for (int64_t c = 0; c < dim; ++c) {
    out.retained[c] /= retained_mass;
    error += (out.output[c] - out.retained[c]) * (out.output[c] - out.retained[c]);
  }
  out.error = std::sqrt(error);
  out.bound = 2 * largest * removed_mass;
  return out;
}

}  // namespace winnow
