#include "eval/fidelity.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace winnow {
namespace {

int64_t ArgMax(std::span<const float> row) {
  return std::max_element(row.begin(), row.end()) - row.begin();
}

}  // namespace

double LogSumExp(std::span<const float> logits) {
  WINNOW_CHECK(!logits.empty());
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

double KlDivergence(std::span<const float> p, std::span<const float> q) {
  WINNOW_CHECK(p.size() == q.size(), "rows of {} and {} logits", p.size(), q.size());
  const double log_p = LogSumExp(p);
  const double log_q = LogSumExp(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_ratio = (p[i] - log_p) - (q[i] - log_q);
    kl += std::exp(p[i] - log_p) * log_ratio;
  }
  return kl;
}

void LogitTrace::Append(std::span<const float> row) {
  WINNOW_CHECK(!row.empty() && (data_.empty() || static_cast<int64_t>(row.size()) == vocabulary_));
  vocabulary_ = static_cast<int64_t>(row.size());
  data_.insert(data_.end(), row.begin(), row.end());
}

std::span<const float> LogitTrace::Row(int64_t index) const {
  WINNOW_CHECK(index >= 0 && index < rows(), "row {} of {}", index, rows());
  return std::span(data_).subspan(index * vocabulary_, vocabulary_);
}

void Fidelity::Add(std::span<const float> dense, std::span<const float> arm, TokenId reference) {
  WINNOW_CHECK(reference >= 0 && reference < static_cast<int64_t>(dense.size()));
  ++positions;
  kl += KlDivergence(dense, arm);
  same_top1 += ArgMax(dense) == ArgMax(arm) ? 1 : 0;
  nll_dense += LogSumExp(dense) - dense[reference];
  nll_arm += LogSumExp(arm) - arm[reference];
}

Fidelity& Fidelity::operator+=(const Fidelity& other) {
  positions += other.positions;
  kl += other.kl;
  same_top1 += other.same_top1;
  nll_dense += other.nll_dense;
  nll_arm += other.nll_arm;
  return *this;
}

double Fidelity::PerplexityRatio() const {
  return std::exp((nll_arm - nll_dense) / static_cast<double>(positions));
}

}  // namespace winnow
