// What paired results of two arms on the same prompts say: tests and intervals.
//
// "Lost" and "gained" count the discordant pairs: prompts that only the reference, resp. only the
// arm, answered right. The difference is the arm's rate less the reference's.
#pragma once

#include <cstdint>
#include <span>

namespace winnow {

struct PairedCounts {
  int64_t pairs = 0;   // n
  int64_t lost = 0;    // c: the reference right, the arm wrong
  int64_t gained = 0;  // b: the arm right, the reference wrong

  double Difference() const {
    return pairs == 0 ? 0 : static_cast<double>(gained - lost) / static_cast<double>(pairs);
  }
};

struct Interval {
  double low = 0;
  double high = 0;
};

// Exact McNemar tests: of b + c discordant pairs, each is lost with probability 1/2 if the arms are
// equally good. Two-sided: min(1, 2·min(P(X <= c), P(X >= c))). Harm: P(X >= c). 1 without
// discordant pairs. That harm is not significant does not show its absence: TangoZ does.
double McNemarP(const PairedCounts& counts);
double McNemarHarmP(const PairedCounts& counts);

// Tango's score statistic (Statistics in Medicine 17, 891, 1998) for H0: difference = `difference`,
// in (-1, 1), with the variance at the restricted maximum likelihood estimate. Positive: the data
// lie above. For difference = -margin, TangoZ > kOneSided95 shows at the 5 % level that the arm
// loses less than the margin. Defined without discordant pairs; 0 without pairs.
double TangoZ(const PairedCounts& counts, double difference);

inline constexpr double kOneSided95 = 1.6448536269514722;  // normal quantile 0.95
inline constexpr double kTwoSided95 = 1.9599639845400545;  // 0.975

// The differences that TangoZ does not reject at |z| <= `quantile`. [-1, 1] without pairs.
Interval TangoInterval(const PairedCounts& counts, double quantile = kTwoSided95);

struct BootstrapMean {
  double mean = 0;
  double one_sided_low = 0;  // 5 % quantile of the resampled means
  Interval interval;         // 2.5 % and 97.5 %
};

inline constexpr int kBootstrapResamples = 10'000;

// What one sample adds to a mean: a difference of scores (n = 1), or a sum over n positions.
struct BootstrapItem {
  double sum = 0;
  int64_t n = 1;
  uint64_t cluster = 0;
};

// Percentile bootstrap of sum(sum) / sum(n) over `items`, at least one, each with n >= 1. Whole
// clusters are drawn with replacement: items of the same cluster belong together, such as questions
// about one context. Deterministic for a seed.
BootstrapMean Bootstrap(std::span<const BootstrapItem> items, uint64_t seed,
                        int resamples = kBootstrapResamples);

}  // namespace winnow
