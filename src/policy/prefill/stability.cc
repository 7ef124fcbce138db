#include "policy/prefill/stability.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "policy/certify/symmetric_eigen.h"

namespace winnow {

NormaliserBounds ComputeNormaliserBounds(std::span<const double> gamma,
                                         std::span<const double> beta, double epsilon) {
  WINNOW_CHECK(beta.empty() || beta.size() == gamma.size());
  double largest = 0;
  for (double x : gamma) largest = std::max(largest, std::abs(x));
  double shift = 0;
  for (double x : beta) shift += x * x;
  return {largest / std::sqrt(epsilon),
          largest * std::sqrt(static_cast<double>(gamma.size())) + std::sqrt(shift)};
}

double SpectralNorm(TensorView<const double, 2> matrix) {
  const auto [rows, columns] = matrix.shape;
  const bool tall = rows > columns;
  const int64_t order = std::min(rows, columns);
  std::vector<double> gram(order * order, 0.0);
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      if (tall) {
        for (int64_t k = 0; k < rows; ++k) sum += matrix.row(k)[i] * matrix.row(k)[j];
      } else {
        for (int64_t k = 0; k < columns; ++k) sum += matrix.row(i)[k] * matrix.row(j)[k];
      }
      gram[i * order + j] = gram[j * order + i] = sum;
    }
  }
  return std::sqrt(LargestEigenvalue(gram, order));
}

BlockConstants ComputeBlockConstants(const BlockNorms& norms, double softmax_factor) {
  BlockConstants constants;
  double squares = 0;
  for (const HeadNorms& head : norms.heads) {
    const double a = norms.attention_lipschitz * norms.logit_scale *
                     (head.query_bound * head.key + head.key_bound * head.query);
    const double b = norms.attention_lipschitz * head.value + softmax_factor * head.value_bound * a;
    constants.a.push_back(a);
    constants.b.push_back(b);
    squares += b * b;
  }
  constants.mlp = 1 + norms.mlp * norms.mlp_lipschitz;
  constants.attention = 1 + norms.output * std::sqrt(squares);
  constants.block = constants.mlp * constants.attention;
  return constants;
}

double DeletionDefect(const BlockNorms& norms, double mlp_constant, std::span<const double> eta) {
  WINNOW_CHECK(eta.size() == norms.heads.size());
  double squares = 0;
  for (size_t h = 0; h < eta.size(); ++h) {
    const double moved = norms.heads[h].value_bound * eta[h];
    squares += moved * moved;
  }
  return 2 * mlp_constant * norms.output * std::sqrt(squares);
}

std::vector<double> PropagateDefects(std::span<const double> log_defects,
                                     std::span<const double> log_block_constants) {
  WINNOW_CHECK(log_defects.size() == log_block_constants.size());
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  std::vector<double> deltas = {kNothing};
  for (size_t l = 0; l < log_defects.size(); ++l) {
    const double carried =
        deltas.back() == kNothing ? kNothing : log_block_constants[l] + deltas.back();
    const double larger = std::max(log_defects[l], carried);
    const double smaller = std::min(log_defects[l], carried);
    deltas.push_back(larger == kNothing ? kNothing
                                        : larger + std::log1p(std::exp(smaller - larger)));
  }
  return deltas;
}

double DecisionMargin(std::span<const double> logits) {
  WINNOW_CHECK(logits.size() >= 2);
  double first = -std::numeric_limits<double>::infinity();
  double second = first;
  for (double z : logits) {
    if (std::isnan(z)) return z;
    if (z > first) {
      second = first;
      first = z;
    } else {
      second = std::max(second, z);
    }
  }
  return first - second;
}

bool FirstTokenCertified(double margin, double logit_bound) { return margin > 2 * logit_bound; }

double DensityRatioExcess(TensorView<const double, 2> rows, std::span<const double> mu,
                          std::span<const uint8_t> documents, double gamma) {
  const auto [n_rows, n_tokens] = rows.shape;
  WINNOW_CHECK(std::ssize(mu) == n_tokens && std::ssize(documents) == n_tokens);
  double largest = 0;
  for (int64_t u = 0; u < n_rows; ++u) {
    double excess = 0;
    for (int64_t j = 0; j < n_tokens; ++j) {
      if (documents[j] != 0) excess += std::max(rows.row(u)[j] - gamma * mu[j], 0.0);
    }
    largest = std::max(largest, excess);
  }
  return largest;
}

double LargestDensityRatio(TensorView<const double, 2> rows, std::span<const double> mu,
                           std::span<const uint8_t> documents) {
  const auto [n_rows, n_tokens] = rows.shape;
  WINNOW_CHECK(std::ssize(mu) == n_tokens && std::ssize(documents) == n_tokens);
  double largest = 0;
  for (int64_t u = 0; u < n_rows; ++u) {
    for (int64_t j = 0; j < n_tokens; ++j) {
      // 0/0 is no excess.
      if (documents[j] != 0 && rows.row(u)[j] > 0) {
        largest = std::max(largest, rows.row(u)[j] / mu[j]);
      }
    }
  }
  return largest;
}

double TransferredMass(double gamma, double pooled_mass, double sigma) {
  return std::min(1.0, gamma * pooled_mass + sigma);
}

}  // namespace winnow
