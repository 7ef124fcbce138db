// The median that timings are summed up by.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace winnow {

// The middle one of at least one value; of two the smaller, since what disturbs a stage makes it
// longer.
inline double LowerMedian(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace winnow
