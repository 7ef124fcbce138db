// The program `winnow`: finds the command, turns every error into a message and an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench_command.h"
#include "cli/calibrate_command.h"
#include "cli/chat_command.h"
#include "cli/command.h"
#include "cli/compare_command.h"
#include "cli/diagnose_command.h"
#include "cli/eval_command.h"
#include "cli/inspect_command.h"
#include "cli/output.h"
#include "cli/run_command.h"
#include "cli/signals.h"
#include "core/error.h"
#include "core/library_log.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace {

int Report(ExitKind kind, std::string_view message, bool json) {
  Warn(message);
  // Nothing is left to be done about a standard output that cannot be written.
  if (json) Output().Write(DumpJson(ErrorJson(kind.name, message), /*indent=*/true) + "\n");
  return kind.exit_code;
}

// Whether --json was given, in any spelling that CLI11 knows, also where parsing went wrong: the
// options hold what was read before that. A value that makes no sense still asks for JSON.
bool WantsJson(const CLI::App& app) {
  const CLI::Option* option = app.get_option_no_throw("--json");
  if (option == nullptr || option->results().empty()) {
    const std::vector<const CLI::App*> commands =
        app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
    return std::any_of(commands.begin(), commands.end(),
                       [](const CLI::App* command) { return WantsJson(*command); });
  }
  try {
    return CLI::detail::to_flag_value(option->results().back()) > 0;
  } catch (const std::invalid_argument&) {
    return true;
  }
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// What a mistyped command is to be told, or "": CLI11 reports it as a missing one, and takes the
// help flag after it for the program's.
std::string UnknownCommand(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  if (!app.get_subcommands().empty() || extras.empty() || extras.front().starts_with('-')) {
    return "";
  }
  return fmt::format("unknown command '{}'{}", extras.front(),
                     DidYouMean(extras.front(), CommandNames(app)));
}

void CollectFlags(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
}

std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && extras.empty() &&
      app.get_subcommands().empty()) {
    return fmt::format("a command is missing: {}", Joined(CommandNames(app)));
  }
  const bool about_extras =
      dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || app.get_subcommands().empty();
  if (!about_extras || extras.empty()) return error.what();
  const auto flag = std::find_if(extras.begin(), extras.end(),
                                 [](const std::string& arg) { return arg.starts_with('-'); });
  if (flag == extras.end()) return fmt::format("unexpected argument '{}'", extras.front());
  std::vector<std::string> names;
  CollectFlags(app, names);
  for (const CLI::App* command : app.get_subcommands()) CollectFlags(*command, names);
  const std::string name = flag->substr(0, flag->find('='));
  return fmt::format("unknown flag '{}'{}", name, DidYouMean(name, names));
}

void DefineProgram(CLI::App& app, CommandContext& context) {
  app.description("Answers questions over long documents with a language model on this machine.");
  app.set_version_flag("--version",
                       fmt::format("winnow {} (ggml {})", WINNOW_VERSION, GgmlVersion()));
  app.set_help_flag("-h,--help", "Print this help");
  app.add_flag("-v,--verbose", context.verbose, "Show the libraries' logs on stderr");
  // Hidden, for the commands have it too: this one sees it beside a mistyped command.
  app.add_flag("--json", context.json)->group("");
  app.fallthrough();
  app.require_subcommand(1);
  AddRunCommand(app, context);
  AddChatCommand(app, context);
  AddInspectCommand(app, context);
  AddBenchCommand(app, context);
  AddEvalCommand(app, context);
  AddCompareCommand(app, context);
  AddCalibrateCommand(app, context);
  AddDiagnoseCommand(app, context);
  // After the commands, which would inherit it.
  app.footer(
      "Start here:\n"
      "  winnow run -f report.txt -p \"What was decided?\"   one answer over a document\n"
      "  winnow chat -f notes/                              a conversation over a folder\n"
      "  winnow run --help                                  all flags of a command, an example\n"
      "\n"
      "Exit codes: 0 done, 2 bad usage, 3 bad input, 4 not enough memory or disk, 130 stopped by "
      "Ctrl-C,\n141 the reader of standard output went away.");
}

// Gives closed standard streams a descriptor, which the first files to be opened would take
// otherwise: messages must not end up in them. A closed standard output stays one that cannot be
// written.
void ReserveStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free descriptor, which is `fd`.
    if (::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

// What ends the parsing without a command to run: help, the version, or a mistake.
int FinishParsing(const CLI::App& app, const CLI::ParseError& error) {
  const std::string unknown = UnknownCommand(app);
  if (error.get_exit_code() == 0 && unknown.empty()) {
    std::ostringstream text;
    app.exit(error, text, text);
    Output output;
    output.Write(text.str());
    return output.ExitCode(0);
  }
  Throw(ErrorKind::kUsage, "{}; `winnow --help` and `winnow COMMAND --help` explain",
        unknown.empty() ? UsageMessage(app, error) : unknown);
}

int ParseAndRun(CLI::App& app, const CommandContext& context, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return FinishParsing(app, error);
  }
  if (context.verbose) ForwardLibraryLog([](const char* text) { WriteErrorLines(text); });
  return context.run();
}

int Main(int argc, char** argv) {
  ReserveStandardStreams();
  InstallSignalHandlers();
  CommandContext context;
  CLI::App app("", "winnow");
  DefineProgram(app, context);
  try {
    return ParseAndRun(app, context, argc, argv);
  } catch (const Error& error) {
    return Report(DescribeError(error.kind()), error.what(), WantsJson(app));
  } catch (const std::bad_alloc&) {
    return Report(DescribeError(ErrorKind::kResource), "out of memory", WantsJson(app));
  } catch (const std::exception& error) {
    return Report(DescribeError(std::nullopt), fmt::format("internal error: {}", error.what()),
                  WantsJson(app));
  }
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) { return winnow::Main(argc, argv); }
