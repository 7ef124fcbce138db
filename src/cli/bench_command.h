// `winnow bench`: tokens a second of Winnow's arms, and of libllama on the same file.
#pragma once

#include <CLI/App.hpp>

#include "cli/command.h"

namespace winnow {

// Registers the subcommand on `app`; see CommandContext.
void AddBenchCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
