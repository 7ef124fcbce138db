// `winnow diagnose --prefill`: what removing chunks in mid-prefill does to one prompt.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "eval/prune_diagnosis.h"
#include "text/prompt.h"

namespace winnow {

struct DiagnosePrefillFlags {
  bool enabled = false;
  std::vector<std::string> remove;  // "3", "5-9"
  PruneDiagnosisOptions options;
};

// Adds --prefill and its flags, which need it; `others` are the options that it excludes.
void AddDiagnosePrefillFlags(CLI::App& command, DiagnosePrefillFlags& flags,
                             const std::vector<CLI::Option*>& others);

// Throws Error(kUsage) for a value out of range or a list of chunks that is none.
PruneDiagnosisOptions ToOptions(const DiagnosePrefillFlags& flags);

struct PrefillDiagnosis {
  nlohmann::ordered_json record;  // without what names the model and the prompt
  std::string table;
};
// Shows progress on a terminal unless `quiet`. Nothing, and the signal, if it was interrupted.
// Throws what DiagnosePruning and ReadModelNorms throw.
std::optional<PrefillDiagnosis> DiagnosePrefill(const LoadedModel& loaded, const Prompt& prompt,
                                                const PruneDiagnosisOptions& options, bool quiet,
                                                int* signal);

}  // namespace winnow
