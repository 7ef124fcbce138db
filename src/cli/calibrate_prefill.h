// `winnow calibrate --prefill`: a profile for pruning documents in mid-prefill.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "eval/prune_calibration.h"
#include "eval/task.h"

namespace winnow {

struct PrefillCalibration {
  PruneStyle style = PruneStyle::kLate;
  double keep = 0.25;
  std::string out;      // file for the profile
  std::string command;  // what repeats it
  bool quiet = false;
  std::vector<EvalSample> calibrate;  // with evidence, at least one
  std::vector<EvalSample> test;       // likewise
};

// Writes the profile and prints what was found. Returns the exit code; Ctrl-C leaves no profile.
// Throws Error(kInput) for prompts without evidence, Error(kResource) if the file cannot be
// written.
int CalibratePrefill(const LoadedModel& loaded, const PrefillCalibration& calibration, bool json);

}  // namespace winnow
