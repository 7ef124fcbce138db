#include "policy/certify/summary.h"

#include <algorithm>
#include <cmath>

#include "policy/certify/symmetric_eigen.h"

namespace winnow {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

double Square(double x) { return x * x; }

double Distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += Square(a[i] - b[i]);
  return std::sqrt(sum);
}

double Norm(std::span<const double> a) {
  double sum = 0;
  for (double x : a) sum += x * x;
  return std::sqrt(sum);
}

std::span<const double> Row(TensorView<const double, 2> rows, int64_t i) {
  return {rows.row(i), static_cast<size_t>(rows.shape[1])};
}

std::vector<double> MeanRow(TensorView<const double, 2> rows) {
  std::vector<double> mean(rows.shape[1], 0.0);
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += rows.row(i)[c];
  }
  for (double& x : mean) x /= static_cast<double>(rows.shape[0]);
  return mean;
}

double Radius(TensorView<const double, 2> rows, std::span<const double> centre) {
  double radius = 0;
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    const double distance = Distance(Row(rows, i), centre);
    // Not std::max, which would lose a NaN.
    if (!(distance <= radius)) radius = distance;
  }
  return radius;
}

// The smaller of the covariance and the Gram matrix has the same largest eigenvalue.
double LargestVariance(TensorView<const double, 2> rows, std::span<const double> mean) {
  const auto n = static_cast<size_t>(rows.shape[0]);
  const size_t dim = mean.size();
  const bool by_rows = n <= dim;
  const size_t order = by_rows ? n : dim;
  const size_t inner = by_rows ? dim : n;
  std::vector<double> matrix(order * order, 0.0);
  const auto centred = [&](size_t i, size_t k) {
    return by_rows ? rows.row(i)[k] - mean[k] : rows.row(k)[i] - mean[i];
  };
  for (size_t i = 0; i < order; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (size_t k = 0; k < inner; ++k) sum += centred(i, k) * centred(j, k);
      matrix[i * order + j] = matrix[j * order + i] = sum / static_cast<double>(n);
    }
  }
  return LargestEigenvalue(matrix, order);
}

double RootMeanSquare(TensorView<const double, 2> rows, std::span<const double> centre) {
  double sum = 0;
  for (int64_t i = 0; i < rows.shape[0]; ++i) sum += Square(Distance(Row(rows, i), centre));
  return std::sqrt(sum / static_cast<double>(rows.shape[0]));
}

// Interval of a non-negative difference that may be off by `error`, squared.
double SquareAtLeast(double difference, double error) {
  return Square(std::max(0.0, std::abs(difference) - error));
}
double SquareAtMost(double difference, double error) {
  return Square(std::abs(difference) + error);
}

// Deviation of the tokens that are left: (n·var − Σ (k − c)²)/m − (c' − c)², in intervals, and
// wider by what the subtraction can have lost.
void ReduceDeviation(const PageSummary& from, TensorView<const double, 2> keys, PageSummary& to) {
  const auto n = static_cast<double>(from.n);
  const auto m = static_cast<double>(to.n);
  to.deviation_lo.resize(from.mean.size());
  to.deviation_hi.resize(from.mean.size());
  for (size_t c = 0; c < from.mean.size(); ++c) {
    double removed_lo = 0;
    double removed_hi = 0;
    for (int64_t i = 0; i < keys.shape[0]; ++i) {
      const double difference = keys.row(i)[c] - from.mean[c];
      removed_lo += SquareAtLeast(difference, from.mean_error[c]);
      removed_hi += SquareAtMost(difference, from.mean_error[c]);
    }
    const double shift = to.mean[c] - from.mean[c];
    const double shift_error = to.mean_error[c] + from.mean_error[c];
    const double all_hi = n * Square(from.deviation_hi[c]);
    const double lost = 4 * (n + 4) * kEpsilon * (all_hi + removed_hi) / m;
    to.deviation_hi[c] = std::sqrt(
        std::max(0.0, (all_hi - removed_lo) / m - SquareAtLeast(shift, shift_error) + lost));
    to.deviation_lo[c] =
        std::sqrt(std::max(0.0, (n * Square(from.deviation_lo[c]) - removed_hi) / m -
                                    SquareAtMost(shift, shift_error) - lost));
    // A NaN must not become a zero.
    if (std::isnan(all_hi + removed_hi + shift)) to.deviation_hi[c] = all_hi + removed_hi + shift;
  }
}

std::vector<double> MeanWithout(std::span<const double> mean, TensorView<const double, 2> rows,
                                double n) {
  std::vector<double> left(mean.size());
  for (size_t c = 0; c < mean.size(); ++c) {
    double sum = n * mean[c];
    for (int64_t i = 0; i < rows.shape[0]; ++i) sum -= rows.row(i)[c];
    left[c] = sum / (n - static_cast<double>(rows.shape[0]));
  }
  return left;
}

}  // namespace

PageSummaryView PageSummary::View() const {
  return {n,
          mean,
          mean_error,
          box_lo,
          box_hi,
          deviation_lo,
          deviation_hi,
          radius,
          largest_variance,
          value_mean,
          value_mean_error,
          value_radius,
          value_deviation};
}

PageSummary Summarize(TensorView<const double, 2> keys, TensorView<const double, 2> values) {
  WINNOW_CHECK(keys.shape[0] >= 1 && keys.shape[0] == values.shape[0], "{} keys, {} values",
               keys.shape[0], values.shape[0]);
  PageSummary summary;
  summary.n = keys.shape[0];
  summary.mean = MeanRow(keys);
  const size_t dim = summary.mean.size();
  summary.mean_error.assign(dim, 0.0);
  summary.box_lo.assign(keys.row(0), keys.row(0) + dim);
  summary.box_hi = summary.box_lo;
  std::vector<double> squares(dim, 0.0);
  for (int64_t i = 0; i < keys.shape[0]; ++i) {
    for (size_t c = 0; c < dim; ++c) {
      summary.box_lo[c] = std::min(summary.box_lo[c], keys.row(i)[c]);
      summary.box_hi[c] = std::max(summary.box_hi[c], keys.row(i)[c]);
      squares[c] += Square(keys.row(i)[c] - summary.mean[c]);
    }
  }
  for (double& x : squares) x = std::sqrt(x / static_cast<double>(summary.n));
  summary.deviation_lo = squares;
  summary.deviation_hi = std::move(squares);
  summary.radius = Radius(keys, summary.mean);
  summary.largest_variance = LargestVariance(keys, summary.mean);
  summary.value_mean = MeanRow(values);
  summary.value_radius = Radius(values, summary.value_mean);
  summary.value_deviation = std::sqrt(LargestVariance(values, summary.value_mean));
  summary.value_rms = RootMeanSquare(values, summary.value_mean);
  return summary;
}

PageSummary WithoutTokens(const PageSummary& summary, TensorView<const double, 2> keys,
                          TensorView<const double, 2> values) {
  const int64_t n_removed = keys.shape[0];
  WINNOW_CHECK(n_removed == values.shape[0] && n_removed < summary.n, "{} and {} of {} tokens",
               n_removed, values.shape[0], summary.n);
  const auto n = static_cast<double>(summary.n);
  const double ratio = n / (n - static_cast<double>(n_removed));
  PageSummary left;
  left.n = summary.n - n_removed;
  left.mean = MeanWithout(summary.mean, keys, n);
  left.mean_error = summary.mean_error;
  for (size_t c = 0; c < left.mean.size(); ++c) {
    const double largest = std::max(std::abs(summary.box_lo[c]), std::abs(summary.box_hi[c]));
    left.mean_error[c] = ratio * (summary.mean_error[c] + (n + 4) * kEpsilon * largest);
  }
  left.box_lo = summary.box_lo;
  left.box_hi = summary.box_hi;
  ReduceDeviation(summary, keys, left);
  left.radius = summary.radius + Distance(left.mean, summary.mean) + Norm(left.mean_error) +
                Norm(summary.mean_error);
  left.largest_variance = summary.largest_variance * ratio;
  left.value_mean = MeanWithout(summary.value_mean, values, n);
  const double largest_value = Norm(summary.value_mean) + summary.value_radius;
  left.value_mean_error = ratio * (summary.value_mean_error + (n + 4) * kEpsilon * largest_value);
  left.value_radius = summary.value_radius + Distance(left.value_mean, summary.value_mean) +
                      left.value_mean_error + summary.value_mean_error;
  left.value_deviation = summary.value_deviation * std::sqrt(ratio);
  left.value_rms = summary.value_rms * std::sqrt(ratio);
  return left;
}

PageSummary Stored(const PageSummary& summary, FloatFormat format) {
  PageSummary stored = summary;
  const auto up = [format](double x) { return RoundUp(x, format); };
  const auto down = [format](double x) { return RoundDown(x, format); };
  for (size_t c = 0; c < stored.mean.size(); ++c) {
    stored.mean[c] = RoundNearest(summary.mean[c], format);
    stored.mean_error[c] += NearestError(stored.mean[c], format);
  }
  std::transform(stored.box_lo.begin(), stored.box_lo.end(), stored.box_lo.begin(), down);
  std::transform(stored.box_hi.begin(), stored.box_hi.end(), stored.box_hi.begin(), up);
  std::transform(stored.deviation_lo.begin(), stored.deviation_lo.end(),
                 stored.deviation_lo.begin(), down);
  std::transform(stored.deviation_hi.begin(), stored.deviation_hi.end(),
                 stored.deviation_hi.begin(), up);
  stored.radius = up(summary.radius);
  stored.largest_variance = up(summary.largest_variance);
  double value_error = 0;
  for (double& x : stored.value_mean) {
    x = RoundNearest(x, format);
    value_error += Square(NearestError(x, format));
  }
  stored.value_mean_error += std::sqrt(value_error);
  stored.value_radius = up(summary.value_radius);
  stored.value_deviation = up(summary.value_deviation);
  stored.value_rms = up(summary.value_rms);
  return stored;
}

}  // namespace winnow
