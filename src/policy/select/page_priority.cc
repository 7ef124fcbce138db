#include "policy/select/page_priority.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "policy/select/routing.h"

namespace winnow {

void PoolingWeights(TensorView<const double, 2> a, int64_t n_sinks, const HeadPooling& options,
                    std::span<double> weights) {
  const auto [n_heads, n] = a.shape;
  WINNOW_CHECK(std::ssize(weights) == n_heads && n_heads >= 1 && options.tau > 0);
  // C^(1/τ) underflows for a small τ, so the weights are a softmax of ln(C)/τ.
  constexpr double kIneligible = -std::numeric_limits<double>::infinity();
  double largest = kIneligible;
  for (int64_t h = 0; h < n_heads; ++h) {
    double mass = 0;
    double squares = 0;
    for (int64_t j = std::min(n_sinks, n); j < n; ++j) {
      const double share = a.row(h)[j];
      mass += share;
      squares += share * share;
    }
    const bool eligible = mass >= options.z_min && mass > 0;
    weights[h] = eligible ? std::log(squares / (mass * mass)) / options.tau : kIneligible;
    largest = std::max(largest, weights[h]);
  }
  double sum = 0;
  for (double& weight : weights) {
    weight = largest == kIneligible ? 1.0 : std::exp(weight - largest);
    sum += weight;
  }
  for (double& weight : weights) {
    weight = (1 - options.zeta) * weight / sum + options.zeta / static_cast<double>(n_heads);
  }
}

void PagePriorities(TensorView<const double, 2> a, std::span<const double> weights,
                    int64_t page_tokens, std::span<double> priorities) {
  const auto [n_heads, n] = a.shape;
  WINNOW_CHECK(page_tokens >= 1 && std::ssize(weights) == n_heads &&
                   std::ssize(priorities) == (n + page_tokens - 1) / page_tokens,
               "{} pages of {} for {} tokens", priorities.size(), page_tokens, n);
  std::fill(priorities.begin(), priorities.end(), 0.0);
  double total = 0;
  for (int64_t j = 0; j < n; ++j) {
    double importance = 0;
    for (int64_t h = 0; h < n_heads; ++h) importance += weights[h] * a.row(h)[j];
    total += importance;
    double& priority = priorities[j / page_tokens];
    priority = std::max(priority, importance);
  }
  // A NaN is in the total, if not in its page's maximum.
  for (double& priority : priorities) priority /= total;
}

std::vector<int64_t> RetainedPages(std::span<const double> priorities, int64_t begin, int64_t end,
                                   int64_t quota) {
  const auto n = std::ssize(priorities);
  WINNOW_CHECK(0 <= begin && begin <= end && end <= n, "pages [{}, {}) of {}", begin, end, n);
  const int64_t n_protected = n - (end - begin);
  std::vector<int64_t> pages;
  for (int64_t page = 0; page < begin; ++page) pages.push_back(page);
  for (int64_t i : TopIndices(priorities.subspan(begin, end - begin), quota - n_protected)) {
    pages.push_back(begin + i);
  }
  for (int64_t page = end; page < n; ++page) pages.push_back(page);
  return pages;
}

}  // namespace winnow
