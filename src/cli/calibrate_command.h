// `winnow calibrate`: finds what `auto` runs on a model, and writes its profile.
#pragma once

#include "cli/command.h"

namespace winnow {

void AddCalibrateCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
