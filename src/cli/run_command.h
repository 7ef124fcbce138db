// `winnow run`: one question, over documents if there are any, answered on standard output.
#pragma once

#include <CLI/App.hpp>

#include "cli/command.h"

namespace winnow {

void AddRunCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
