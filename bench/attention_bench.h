// What the programs that measure attention alone share: flags, the threads, and values.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "bench/timed_rounds.h"
#include "core/dtype.h"
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

// Half words whose bytes are ordinary numbers as f16, and as parts of an f32 or an int8.
inline uint16_t OrdinaryHalf(Rng& rng) {
  constexpr uint16_t kHalfOne = 0x3c00;
  return static_cast<uint16_t>(kHalfOne - rng.Below(1024));
}

}  // namespace winnow
