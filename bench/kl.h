// How far two rows of logits are apart as distributions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "core/check.h"

namespace winnow {

// log(sum(exp(logits))), in double.
inline double LogSumExp(std::span<const float> logits) {
  WINNOW_CHECK(!logits.empty());
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

// KL(P || Q) in nats of softmax(p) and softmax(q), both [V], computed in double.
inline double KlDivergence(std::span<const float> p, std::span<const float> q) {
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

}  // namespace winnow
