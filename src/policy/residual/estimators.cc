#include "policy/residual/estimators.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Moves `log_mass` into the interval and counts it if that changed it. A NaN anywhere gives NaN.
// Edges that rounding has crossed (a page of equal keys) are no error: the upper one wins.
double Clip(double log_mass, const LogMassInterval& interval, int64_t& clipped) {
  if (std::isnan(interval.low) || std::isnan(interval.high) || std::isnan(log_mass)) return kNaN;
  const double inside = std::min(std::max(log_mass, interval.low), interval.high);
  if (inside != log_mass) ++clipped;
  return inside;
}

void CheckPages(const PageMoments& pages, std::span<const double> scaled_query) {
  const int64_t n = std::ssize(pages.counts);
  WINNOW_CHECK(pages.key_mean.shape[0] == n && pages.value_mean.shape[0] == n &&
                   pages.key_mean.shape[1] == std::ssize(scaled_query),
               "summaries of {} pages by {} for {} counts and a query of {}",
               pages.key_mean.shape[0], pages.key_mean.shape[1], n, scaled_query.size());
}

double CentroidLogMass(const PageMoments& pages, std::span<const double> scaled_query,
                       int64_t page) {
  if (pages.counts[page] == 0) return -kInfinity;
  double score = std::log(static_cast<double>(pages.counts[page]));
  const double* mean = pages.key_mean.row(page);
  for (size_t c = 0; c < scaled_query.size(); ++c) score += scaled_query[c] * mean[c];
  return score;
}

std::vector<double> ColumnMeans(TensorView<const double, 2> rows) {
  std::vector<double> mean(rows.shape[1], 0.0);
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += rows.row(i)[c];
  }
  for (double& x : mean) x /= static_cast<double>(rows.shape[0]);
  return mean;
}

}  // namespace

PartialAttention CentroidEstimate(const PageMoments& pages, std::span<const double> scaled_query,
                                  std::span<const int64_t> unread) {
  CheckPages(pages, scaled_query);
  std::vector<double> log_mass;
  log_mass.reserve(unread.size());
  for (int64_t page : unread) log_mass.push_back(CentroidLogMass(pages, scaled_query, page));
  return MixRows(log_mass, pages.value_mean, unread);
}

ResidualEstimate CumulantEstimate(const PageMoments& pages, std::span<const double> scaled_query,
                                  std::span<const int64_t> unread,
                                  std::span<const LogMassInterval> intervals) {
  CheckPages(pages, scaled_query);
  WINNOW_CHECK(pages.key_variance.shape == pages.key_mean.shape);
  WINNOW_CHECK(intervals.empty() || intervals.size() == unread.size(), "{} intervals for {} pages",
               intervals.size(), unread.size());
  ResidualEstimate estimate;
  std::vector<double> log_mass;
  log_mass.reserve(unread.size());
  for (size_t i = 0; i < unread.size(); ++i) {
    double mass = CentroidLogMass(pages, scaled_query, unread[i]);
    if (mass != -kInfinity) {
      const double* variance = pages.key_variance.row(unread[i]);
      for (size_t c = 0; c < scaled_query.size(); ++c) {
        mass += 0.5 * scaled_query[c] * scaled_query[c] * variance[c];
      }
      if (!intervals.empty()) mass = Clip(mass, intervals[i], estimate.clipped);
    }
    log_mass.push_back(mass);
  }
  estimate.state = MixRows(log_mass, pages.value_mean, unread);
  return estimate;
}

ResaMeans MakeResaMeans(TensorView<const double, 2> scaled_queries,
                        TensorView<const double, 2> keys) {
  WINNOW_CHECK(scaled_queries.shape == keys.shape && keys.shape[0] >= 1);
  return {ColumnMeans(scaled_queries), ColumnMeans(keys)};
}

PartialAttention ResaEstimate(const ResaMeans& means, std::span<const double> scaled_query,
                              const PartialAttention& unread_under_mean) {
  WINNOW_CHECK(means.query.size() == scaled_query.size() && means.key.size() == means.query.size());
  double shift = 0;
  for (size_t c = 0; c < scaled_query.size(); ++c) {
    shift += (scaled_query[c] - means.query[c]) * means.key[c];
  }
  PartialAttention estimate = unread_under_mean;
  if (estimate.log_mass != -kInfinity) estimate.log_mass += shift;  // -inf plus inf would be a NaN
  return estimate;
}

std::vector<int64_t> DrawWithoutReplacement(std::span<const int64_t> positions, int64_t n,
                                            Rng& rng) {
  WINNOW_CHECK(n >= 0, "{} draws", n);
  // Selection sampling (Knuth, TAOCP 2, algorithm 3.4.2 S): one pass, keeps the order.
  std::vector<int64_t> drawn;
  int64_t wanted = std::min(n, std::ssize(positions));
  int64_t left = std::ssize(positions);
  for (int64_t position : positions) {
    if (static_cast<int64_t>(rng.Below(left--)) < wanted) {
      drawn.push_back(position);
      --wanted;
    }
  }
  return drawn;
}

ResidualEstimate SampleEstimate(std::span<const double> scaled_query,
                                TensorView<const double, 2> keys,
                                TensorView<const double, 2> values,
                                std::span<const SampledStratum> strata) {
  ResidualEstimate estimate{NoAttention(values.shape[1])};
  for (const SampledStratum& stratum : strata) {
    const int64_t n = std::ssize(stratum.drawn);
    WINNOW_CHECK(n <= stratum.size && (n > 0 || stratum.size == 0), "{} of {} drawn", n,
                 stratum.size);
    if (n == 0) continue;
    PartialAttention part = AttendRows(scaled_query, keys, values, stratum.drawn);
    part.log_mass += std::log(static_cast<double>(stratum.size) / static_cast<double>(n));
    part.log_mass = Clip(part.log_mass, stratum.interval, estimate.clipped);
    Merge(estimate.state, part);
  }
  return estimate;
}

}  // namespace winnow
