#include "policy/certify/leakage.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "policy/select/routing.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// log M − H(α*), never negative.
double EntropyDeficit(const SupportGeometry& geometry) {
  WINNOW_CHECK(
      geometry.n_atoms >= 1 && geometry.n_support >= 1 && geometry.n_support <= geometry.n_atoms,
      "{} of {} atoms", geometry.n_support, geometry.n_atoms);
  return std::max(0.0, std::log(static_cast<double>(geometry.n_atoms)) - geometry.entropy);
}

int64_t Outside(const SupportGeometry& geometry) { return geometry.n_atoms - geometry.n_support; }

}  // namespace

double LeakageBound(int64_t n_outside, double gap, double eps, double c) {
  WINNOW_CHECK(n_outside >= 0 && gap >= 0 && eps > 0 && c > 0, "Δ = {}, ε = {}", gap, eps);
  return static_cast<double>(n_outside) * std::exp(-gap / (c * eps));
}

double EpsilonForLeakage(int64_t n_outside, double gap, double leakage, double c) {
  WINNOW_CHECK(n_outside >= 0 && gap >= 0 && leakage > 0 && c > 0, "Δ = {}, δ = {}", gap, leakage);
  const double log_ratio = std::log(static_cast<double>(n_outside) / leakage);
  return log_ratio > 0 ? gap / (c * log_ratio) : kInfinity;
}

double SufficientEpsilon(const SupportGeometry& geometry) {
  const double denominator = 8 * geometry.diameter * geometry.diameter * EntropyDeficit(geometry);
  return denominator > 0 ? geometry.gap * geometry.gap / denominator : kInfinity;
}

double UnconditionalLeakage(const SupportGeometry& geometry, double eps) {
  const double numerator = eps * EntropyDeficit(geometry);
  return numerator > 0 ? numerator / geometry.gap : 0.0;
}

double UnconditionalReadoutError(const SupportGeometry& geometry, double eps) {
  return std::sqrt(2 * eps * EntropyDeficit(geometry));
}

CertifiedLeakage CertifyLeakage(const SupportGeometry& geometry, double eps) {
  CertifiedLeakage result{UnconditionalLeakage(geometry, eps)};
  if (eps <= SufficientEpsilon(geometry)) {
    const double exponential = LeakageBound(Outside(geometry), geometry.gap, eps, 2);
    result.exponential = exponential < result.bound;
    result.bound = std::min(result.bound, exponential);
  }
  result.vacuous = result.bound >= 1;
  return result;
}

double CertifiedEpsilon(const SupportGeometry& geometry, double leakage) {
  const double deficit = EntropyDeficit(geometry);
  const double unconditional = deficit > 0 ? leakage * geometry.gap / deficit : kInfinity;
  const double exponential = std::min(
      SufficientEpsilon(geometry), EpsilonForLeakage(Outside(geometry), geometry.gap, leakage, 2));
  return std::max(unconditional, exponential);
}

SoftmaxLeakage BoundSoftmaxLeakage(std::span<const double> scores, std::span<const bool> in_set,
                                   double eps) {
  WINNOW_CHECK(eps > 0 && scores.size() == in_set.size(), "ε = {}", eps);
  double max_inside = -kInfinity;
  double max_outside = -kInfinity;
  int64_t n_outside = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    double& max = in_set[j] ? max_inside : max_outside;
    max = std::max(max, scores[j]);
    n_outside += in_set[j] ? 0 : 1;
  }
  WINNOW_CHECK(n_outside < std::ssize(scores), "nothing is in the set");
  double inside = 0;  // relative to exp(max_inside/ε), hence >= 1
  double outside = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    (in_set[j] ? inside : outside) += std::exp((scores[j] - max_inside) / eps);
  }
  SoftmaxLeakage result;
  result.tight = outside;
  // A sum that overflows means that all of the mass lies outside.
  result.leak = std::isinf(outside) ? 1.0 : outside / (outside + inside);
  result.paper_form =
      n_outside == 0 ? 0.0
                     : static_cast<double>(n_outside) * std::exp((max_outside - max_inside) / eps);
  result.score_gap = TopTwoGap(scores);
  return result;
}

}  // namespace winnow
