// `winnow inspect`: what a model file holds and what its context costs.
#pragma once

#include <CLI/App.hpp>

#include "cli/command.h"

namespace winnow {

void AddInspectCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
