// What the two attention benchmarks share: flags, the threads, timed rounds that alternate, and
// values.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/function_ref.h"
#include "core/parallel.h"
#include "core/rng.h"

namespace winnow {

struct AttentionBenchFlags {
  int n_threads = DefaultThreads();
  int repetitions = 9;
  std::string filter;  // only rows whose name or KV type contains this
  // Whether a row is to be measured.
  bool Chosen(const std::string& name, DType dtype) const {
    return name.find(filter) != std::string::npos || filter == DTypeName(dtype);
  }
};

// Parses the flags, then calls `run` with them and the threads. Returns the process's exit code.
inline int AttentionBenchMain(int argc, char** argv, const std::string& description,
                              void (*run)(ThreadPool& pool, const AttentionBenchFlags& flags)) {
  AttentionBenchFlags flags;
  CLI::App app(description);
  app.add_option("--threads", flags.n_threads, "threads");
  app.add_option("--repetitions", flags.repetitions, "timed rounds of each row");
  app.add_option("--filter", flags.filter,
                 "only rows whose shape contains this or of this KV type");
  CLI11_PARSE(app, argc, argv);
  ThreadPool pool(flags.n_threads);
  run(pool, flags);
  return 0;
}

// Median seconds of `a` and of `b`, which take turns; a first round of both warms up.
inline std::pair<double, double> AlternatingMedians(int repetitions, FunctionRef<void()> a,
                                                    FunctionRef<void()> b) {
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
    const double a_round = seconds(a);
    const double b_round = seconds(b);
    if (i < 0) continue;
    a_seconds.push_back(a_round);
    b_seconds.push_back(b_round);
  }
  return {median(a_seconds), median(b_seconds)};
}

// Half words whose bytes are ordinary numbers as f16, and as parts of an f32 or an int8.
inline uint16_t OrdinaryHalf(Rng& rng) {
  constexpr uint16_t kHalfOne = 0x3c00;
  return static_cast<uint16_t>(kHalfOne - rng.Below(1024));
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
