// `winnow bench --sweep`: time and certificates over the parameters of Vashista's routing.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "bench/sweep.h"
#include "cli/command.h"

namespace winnow {

struct SweepFlags {
  std::vector<std::string> list;  // of --sweep; empty: no sweep
  SweepOptions options;
  std::string shape = "llama-3.1-8b";
  std::string out;
};

// Adds --sweep and its flags, which need it; `others` are the options that it excludes.
void AddSweepFlags(CLI::App& command, SweepFlags& flags, const std::vector<CLI::Option*>& others);

// Prints what was measured, also where a signal ended it. Returns the exit code. Throws what
// SetSweep, HeadsOfShape and RunSweep throw.
int RunBenchSweep(const SweepFlags& flags, const ModelFlags& model, int repetitions, bool json);

}  // namespace winnow
