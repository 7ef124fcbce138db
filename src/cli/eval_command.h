// `winnow eval`: tasks with known answers under several arms, and statistics against dense.
#pragma once

#include "cli/command.h"

namespace winnow {

void AddEvalCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
