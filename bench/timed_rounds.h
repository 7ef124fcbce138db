// Timed rounds that alternate between two sides, so that what disturbs the machine disturbs both,
// and the random values that benchmarks fill memory with.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/function_ref.h"
#include "core/rng.h"

namespace winnow {

// Seconds, medians over the rounds.
struct RoundMedians {
  double a = 0;
  double b = 0;
};

// `a` and `b` take turns; a first round of both warms up. `should_stop` is asked before each round;
// nothing if it said so.
inline std::optional<RoundMedians> AlternatingMedians(int repetitions, FunctionRef<void()> a,
                                                      FunctionRef<void()> b,
                                                      FunctionRef<bool()> should_stop) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](FunctionRef<void()> fn) {
    const auto start = Clock::now();
    fn();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto median = [](std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  std::vector<double> a_seconds;
  std::vector<double> b_seconds;
  for (int i = -1; i < repetitions; ++i) {
    if (should_stop()) return std::nullopt;
    const double a_round = seconds(a);
    const double b_round = seconds(b);
    if (i < 0) continue;
    a_seconds.push_back(a_round);
    b_seconds.push_back(b_round);
  }
  return RoundMedians{median(a_seconds), median(b_seconds)};
}

inline RoundMedians AlternatingMedians(int repetitions, FunctionRef<void()> a,
                                       FunctionRef<void()> b) {
  return *AlternatingMedians(repetitions, a, b, [] { return false; });
}

template <typename T>
void Shuffle(Rng& rng, std::vector<T>& values) {
  for (size_t i = values.size() - 1; i > 0; --i) std::swap(values[i], values[rng.Below(i + 1)]);
}

inline std::vector<float> NormalValues(Rng& rng, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

}  // namespace winnow
