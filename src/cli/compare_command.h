// `winnow compare`: one prompt under several arms, side by side.
#pragma once

#include "cli/command.h"

namespace winnow {

void AddCompareCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
