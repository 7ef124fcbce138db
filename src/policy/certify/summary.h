// Statistics of one page's keys and values from which bounds follow without reading the page.
//
// Every field is an outer bound: what was rounded when it was stored was rounded so that the truth
// stays inside, or it says by how much it may be off.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "policy/certify/outward_rounding.h"

namespace winnow {

// D is the dimension of keys, E that of values. A figure that is not kept is +inf.
struct PageSummaryView {
  int64_t n = 0;                           // tokens, >= 1
  std::span<const double> mean;            // [D] near the mean key c
  std::span<const double> mean_error;      // [D] >= |mean − c|; empty: zero
  std::span<const double> box_lo, box_hi;  // [D] around every key
  std::span<const double> deviation_lo;    // [D] <= standard deviation (1/n) of the keys
  std::span<const double> deviation_hi;    // [D] >= the same
  double radius = kUnknown;                // >= max ‖k − c‖
  double largest_variance = kUnknown;      // >= largest eigenvalue of the keys' covariance (1/n)
  std::span<const double> value_mean;      // [E] near the mean value v̄
  double value_mean_error = 0;             // >= ‖value_mean − v̄‖
  double value_radius = kUnknown;          // >= max ‖v − v̄‖
  double value_deviation = kUnknown;       // >= root of the largest eigenvalue, as above

  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
};

struct PageSummary {
  int64_t n = 0;
  std::vector<double> mean, mean_error, box_lo, box_hi, deviation_lo, deviation_hi;  // [D]
  double radius = 0;
  double largest_variance = 0;
  std::vector<double> value_mean;  // [E]
  double value_mean_error = 0;
  double value_radius = 0;
  double value_deviation = 0;
  double value_rms = 0;  // >= √ mean ‖v − v̄‖²

  PageSummaryView View() const;
};

// keys [n, D], values [n, E], n >= 1. NaN in a key or value makes figures NaN or infinite.
PageSummary Summarize(TensorView<const double, 2> keys, TensorView<const double, 2> values);

// What is known of a page once its tokens with keys [r, D] and values [r, E], r < n, were taken out
// (they were read exactly): mean and deviation by subtraction, radii moved with the mean, box as it
// was, largest variances times n/(n − r).
PageSummary WithoutTokens(const PageSummary& summary, TensorView<const double, 2> keys,
                          TensorView<const double, 2> values);

// The summary as it reads after storage in `format`: means to the nearest with their error, all
// else outward.
PageSummary Stored(const PageSummary& summary, FloatFormat format);

}  // namespace winnow
