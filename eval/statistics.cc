#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <vector>

#include "core/check.h"
#include "core/rng.h"

namespace winnow {
namespace {

// P(X >= k) for X ~ Bin(n, 1/2), k >= 0, in logarithms: n choose k overflows from n = 1030 on.
double UpperTail(int64_t n, int64_t k) {
  double sum = 0;
  const auto trials = static_cast<double>(n);
  for (int64_t i = k; i <= n; ++i) {
    const auto x = static_cast<double>(i);
    sum += std::exp(std::lgamma(trials + 1) - std::lgamma(x + 1) - std::lgamma(trials - x + 1) -
                    trials * std::numbers::ln2);
  }
  return std::min(sum, 1.0);
}

// `share` of the sorted `values` lie below.
double Quantile(const std::vector<double>& values, double share) {
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

}  // namespace

double McNemarHarmP(const PairedCounts& counts) {
  return UpperTail(counts.lost + counts.gained, counts.lost);
}

double McNemarP(const PairedCounts& counts) {
  // The distribution is symmetric: P(X <= c) = P(X >= b).
  const int64_t larger = std::max(counts.lost, counts.gained);
  return std::min(1.0, 2 * UpperTail(counts.lost + counts.gained, larger));
}

double TangoZ(const PairedCounts& counts, double difference) {
  WINNOW_CHECK(difference > -1 && difference < 1, "a difference of rates of {}", difference);
  if (counts.pairs == 0) return 0;
  const auto n = static_cast<double>(counts.pairs);
  const auto b = static_cast<double>(counts.gained);
  const auto c = static_cast<double>(counts.lost);
  // q: the restricted estimate of the probability of a lost pair, the larger root of
  // 2n·q² + B·q + C = 0.
  const double linear = -b - c + (2 * n - b + c) * difference;
  const double constant = -c * difference * (1 - difference);
  const double root = std::sqrt(std::max(0.0, linear * linear - 8 * n * constant));
  const double q = (root - linear) / (4 * n);
  const double variance = n * (2 * q + difference * (1 - difference));
  const double distance = b - c - n * difference;
  if (variance <= 0) return distance == 0 ? 0 : std::copysign(HUGE_VAL, distance);
  return distance / std::sqrt(variance);
}

Interval TangoInterval(const PairedCounts& counts, double quantile) {
  if (counts.pairs == 0) return {-1, 1};
  // TangoZ falls as the hypothesis grows, so each end is found by bisection; 60 halvings of [-1, 1]
  // reach the last bits of a double.
  const auto where = [&](double level) {
    double low = -1;
    double high = 1;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      if (middle <= -1 || middle >= 1) break;
      (TangoZ(counts, middle) > level ? low : high) = middle;
    }
    return (low + high) / 2;
  };
  return {where(quantile), where(-quantile)};
}

BootstrapMean Bootstrap(std::span<const BootstrapItem> items, uint64_t seed, int resamples) {
  WINNOW_CHECK(!items.empty() && resamples > 0);
  struct Sum {
    double sum = 0;
    int64_t n = 0;
    void Add(double value, int64_t count) {
      sum += value;
      n += count;
    }
    double Mean() const { return sum / static_cast<double>(n); }
  };
  Sum all;
  std::map<uint64_t, Sum> by_cluster;
  for (const BootstrapItem& item : items) {
    WINNOW_CHECK(item.n >= 1);
    all.Add(item.sum, item.n);
    by_cluster[item.cluster].Add(item.sum, item.n);
  }
  std::vector<Sum> clusters;
  clusters.reserve(by_cluster.size());
  for (const auto& [id, sum] : by_cluster) clusters.push_back(sum);

  Rng rng(seed);
  std::vector<double> means(resamples);
  for (double& mean : means) {
    Sum resampled;
    for (size_t i = 0; i < clusters.size(); ++i) {
      const Sum& drawn = clusters[rng.Below(clusters.size())];
      resampled.Add(drawn.sum, drawn.n);
    }
    mean = resampled.Mean();
  }
  std::sort(means.begin(), means.end());
  return {.mean = all.Mean(),
          .one_sided_low = Quantile(means, 0.05),
          .interval = {Quantile(means, 0.025), Quantile(means, 0.975)}};
}

}  // namespace winnow
