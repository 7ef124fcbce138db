// The program `winnow`: finds the command, turns every error into a message and an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench_command.h"
#include "cli/chat_command.h"
#include "cli/command.h"
#include "cli/inspect_command.h"
#include "cli/output.h"
#include "cli/run_command.h"
#include "cli/signals.h"
#include "core/error.h"
#include "core/library_log.h"
#include "policy/arm.h"

namespace winnow {
namespace {

int Report(ExitKind kind, std::string_view message, bool json) {
  Warn(message);
  // Nothing is left to be done about a standard output that cannot be written.
  if (json) Output().Write(DumpJson(ErrorJson(kind.name, message), /*indent=*/true) + "\n");
  return kind.exit_code;
}

std::string Offer(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = NearestName(name, candidates);
  return nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest);
}

// CLI11 reports a mistyped command as a missing one.
void CheckCommandName(const CLI::App& app, const std::vector<std::string>& args) {
  const auto word = std::find_if(args.begin(), args.end(),
                                 [](const std::string& arg) { return !arg.starts_with('-'); });
  if (word == args.end()) return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (std::find(names.begin(), names.end(), *word) != names.end()) return;
  Throw(ErrorKind::kUsage, "unknown command '{}'{}", *word, Offer(*word, names));
}

void CollectFlags(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
}

std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || extras.empty()) {
    return error.what();
  }
  const auto flag = std::find_if(extras.begin(), extras.end(),
                                 [](const std::string& arg) { return arg.starts_with('-'); });
  if (flag == extras.end()) return fmt::format("unexpected argument '{}'", extras.front());
  std::vector<std::string> names;
  CollectFlags(app, names);
  for (const CLI::App* command : app.get_subcommands()) CollectFlags(*command, names);
  const std::string name = flag->substr(0, flag->find('='));
  return fmt::format("unknown flag '{}'{}", name, Offer(name, names));
}

void DefineProgram(CLI::App& app, CommandContext& context) {
  app.description("Answers questions over long documents with a language model on this machine.");
  app.set_version_flag("--version",
                       fmt::format("winnow {} (ggml {})", WINNOW_VERSION, GgmlVersion()));
  app.set_help_flag("-h,--help", "Print this help");
  app.add_flag("-v,--verbose", context.verbose, "Show the libraries' logs on stderr");
  app.fallthrough();
  app.require_subcommand(1);
  AddRunCommand(app, context);
  AddChatCommand(app, context);
  AddInspectCommand(app, context);
  AddBenchCommand(app, context);
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

int Main(int argc, char** argv) {
  ReserveStandardStreams();
  InstallSignalHandlers();
  CommandContext context;
  CLI::App app("", "winnow");
  DefineProgram(app, context);
  const std::vector<std::string> args(argv + 1, argv + argc);
  // Also where parsing itself fails.
  const bool json = std::find(args.begin(), args.end(), "--json") != args.end();
  try {
    CheckCommandName(app, args);
    app.parse(argc, argv);
    if (context.verbose) ForwardLibraryLog([](const char* text) { WriteError(text); });
    return context.run();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return Report(
        DescribeError(ErrorKind::kUsage),
        UsageMessage(app, error) + "; `winnow --help` and `winnow COMMAND --help` explain", json);
  } catch (const Error& error) {
    return Report(DescribeError(error.kind()), error.what(), json);
  } catch (const std::bad_alloc&) {
    return Report(DescribeError(ErrorKind::kResource), "out of memory", json);
  } catch (const std::exception& error) {
    return Report(DescribeError(std::nullopt), fmt::format("internal error: {}", error.what()),
                  json);
  }
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) { return winnow::Main(argc, argv); }
