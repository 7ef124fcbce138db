// `winnow chat`: a conversation on standard input that keeps its pages between turns.
#pragma once

#include <CLI/App.hpp>

#include "cli/command.h"

namespace winnow {

void AddChatCommand(CLI::App& app, CommandContext& context);

}  // namespace winnow
