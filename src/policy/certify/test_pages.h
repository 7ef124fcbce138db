// Pages for property tests of bounds: random and adversarial, with their truth in long double.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/rng.h"
#include "core/tensor_view.h"

namespace winnow::testing {

struct TestPage {
  int64_t n = 0, dim = 0, value_dim = 0;
  std::vector<double> keys;    // [n, dim]
  std::vector<double> values;  // [n, value_dim]

  TensorView<const double, 2> Keys() const { return {keys.data(), {n, dim}}; }
  TensorView<const double, 2> Values() const { return {values.data(), {n, value_dim}}; }
};

inline constexpr int kPageKinds = 10;

// Kinds: 0 normal, 1 one outlier, 2 equal keys, 3 huge norms, 4 one token, 5 two clusters, 6 a
// small spread far from the origin, 7 zeros, 8 one channel varies, 9 two equal tokens and one
// apart.
inline TestPage MakePage(int kind, int64_t dim, int64_t value_dim, Rng& rng) {
  TestPage page{1 + static_cast<int64_t>(rng.Below(12)), dim, value_dim, {}, {}};
  if (kind == 4) page.n = 1;
  if (kind == 9) page.n = 3;
  std::vector<double> centre(dim);
  for (double& x : centre) x = rng.Normal() * (kind == 3 ? 1e6 : kind == 6 ? 1e3 : 1);
  const double spread = kind == 6 ? 1e-3 : kind == 3 ? 1e5 : 1;
  for (int64_t i = 0; i < page.n; ++i) {
    const double sign = rng.Below(2) == 0 ? 1 : -1;
    for (int64_t c = 0; c < dim; ++c) {
      double x = centre[c] + spread * rng.Normal();
      if (kind == 1 && i == 0) x *= 30;
      if (kind == 2) x = centre[c];
      if (kind == 5) x = sign * centre[c] + 1e-2 * rng.Normal();
      if (kind == 7) x = 0;
      if (kind == 8) x = centre[c] + (c == 0 ? 3 * rng.Normal() : 0);
      if (kind == 9) x = centre[c] + (i == 2 ? 4 : 0);
      page.keys.push_back(x);
    }
  }
  for (int64_t i = 0; i < page.n * value_dim; ++i) page.values.push_back(3 + rng.Normal());
  return page;
}

// Scaled so that logits spread by between 0.01 and 100 over a normal page.
inline std::vector<double> MakeQuery(int64_t dim, Rng& rng) {
  const double scale = std::pow(10.0, -2 + 4 * rng.Uniform()) / std::sqrt(static_cast<double>(dim));
  std::vector<double> q(dim);
  for (double& x : q) x = scale * rng.Normal();
  return q;
}

struct Truth {
  long double log_mass = 0;
  std::vector<long double> out;
};

inline Truth Attend(std::span<const double> q, TensorView<const double, 2> keys,
                    TensorView<const double, 2> values) {
  std::vector<long double> logits(keys.shape[0], 0.0L);
  for (int64_t i = 0; i < keys.shape[0]; ++i) {
    for (size_t c = 0; c < q.size(); ++c) {
      logits[i] += static_cast<long double>(q[c]) * keys.row(i)[c];
    }
  }
  Truth truth{*std::max_element(logits.begin(), logits.end()), {}};
  truth.out.assign(values.shape[1], 0.0L);
  const long double top = truth.log_mass;
  long double total = 0;
  for (int64_t i = 0; i < keys.shape[0]; ++i) {
    const long double weight = std::exp(logits[i] - top);
    total += weight;
    for (size_t c = 0; c < truth.out.size(); ++c) truth.out[c] += weight * values.row(i)[c];
  }
  for (long double& x : truth.out) x /= total;
  truth.log_mass = top + std::log(total);
  return truth;
}

template <typename A, typename B>
long double Distance(const A& a, const B& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const long double difference = static_cast<long double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace winnow::testing
