// `winnow diagnose`: the papers' figures of a model's attention over one prompt.
#pragma once

#include "cli/command.h"

namespace winnow {

void AddDiagnoseCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
