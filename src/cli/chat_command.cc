#include "cli/chat_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <utility>

#include "cli/auto_profile.h"
#include "cli/chat_session.h"
#include "core/error.h"
#include "policy/nearest_name.h"
#include "text/read_file.h"
#include "text/utf8.h"

namespace winnow {
namespace {

constexpr char kHelp[] =
    "/add FILE  read a file or a folder with the next question\n"
    "/restore   answer the last question again, over what was dropped from it too\n"
    "/reset     forget the conversation: as at the start, with the documents of -f\n"
    "/stats     what the last answer cost\n"
    "/help      this list\n"
    "/quit      end (or Ctrl-D); Ctrl-C stops an answer\n";

// What an answer over everything was made from, and how soon it began.
std::string RestoredInWords(const RequestResult& result) {
  const PruneLedger& pruning = *result.ledger.pruning;
  const std::string first = FormatSeconds(result.ttft_seconds);
  if (pruning.resumed_tokens == 0) {
    return fmt::format("nothing is parked: all {} tokens were read anew, {} to the first token",
                       FormatCount(result.prompt_tokens), first);
  }
  return fmt::format(
      "nothing is dropped now: {} tokens were restored from layer {} on; {} to the first token",
      FormatCount(pruning.resumed_tokens), pruning.resumed_layers, first);
}

// Reads lines, answers them, carries out what begins with '/'.
class Repl {
 public:
  Repl(const ChatFlags& flags, ChatSession& session, int64_t context_tokens, bool json)
      : flags_(flags),
        session_(session),
        context_tokens_(context_tokens),
        json_(json),
        interactive_(isatty(STDIN_FILENO) == 1) {}

  // Until the input ends. Returns the exit code: of the first turn that failed, where nobody sits
  // at a terminal to see it.
  int Run() {
    std::string line;
    bool first = true;
    while (!quit_ && !output_.failed() && ReadLine(line)) {
      if (std::exchange(first, false))
        line.erase(0, line.size() - WithoutByteOrderMark(line).size());
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      try {
        line.starts_with('/') ? Obey(line) : Answer(line);
      } catch (const Error& error) {
        Fail(error);
      }
    }
    if (killed_by_ != 0) return 128 + killed_by_;
    return output_.ExitCode(interactive_ ? 0 : exit_code_);
  }

 private:
  bool ReadLine(std::string& line) {
    if (interactive_) WriteError("> ");
    if (std::getline(std::cin, line)) {
      if (line.ends_with('\r')) line.pop_back();
      return true;
    }
    if (interactive_) WriteError("\n");
    return false;
  }

  void Answer(const std::string& question) {
    CheckUtf8(question, "the question");
    const InterruptScope interrupts;
    const int turn = session_.turns() + 1;  // also of one that leaves no trace
    RunRecord record;
    try {
      record = session_.Ask(question, json_ ? nullptr : &output_, interrupts);
    } catch (const Error& error) {
      Fail(error);
      return DropFailedTurn(question);
    }
    Report(record, turn, /*restored=*/false, interrupts);
    if (record.result.finish_reason == FinishReason::kFailed) DropFailedTurn(question);
  }

  void Restore() {
    const InterruptScope interrupts;
    const RunRecord record = session_.Restore(json_ ? nullptr : &output_, interrupts);
    Report(record, session_.turns(), /*restored=*/true, interrupts);
    if (!flags_.quiet && !record.result.tokens.empty()) Warn(RestoredInWords(record.result));
  }

  void Report(const RunRecord& record, int turn, bool restored, const InterruptScope& interrupts) {
    if (const int signal = interrupts.Pending(); signal != 0) {
      // Ctrl-C at a terminal ends the answer only.
      if (signal != SIGINT || !interactive_) killed_by_ = signal;
      quit_ = killed_by_ != 0;
    }
    if (json_) {
      nlohmann::ordered_json object = {
          {"schema", "winnow.chat/1"}, {"turn", turn}, {"restored", restored}};
      object.update(ToJson(record));
      output_.Write(DumpJson(object, /*indent=*/false) + "\n");
    } else {
      output_.Write("\n");
    }
    if (record.result.finish_reason == FinishReason::kFailed) {
      Warn(record.result.error);
      RememberFailure(DescribeError(record.result.error_kind));
    }
    if (!json_ && !flags_.quiet && record.result.finish_reason == FinishReason::kContextFull) {
      Warn("the context is full: /reset begins a new conversation");
    }
  }

  // Also with --quiet: what the next answers are about has changed.
  void DropFailedTurn(const std::string& question) {
    const std::vector<std::string> names = session_.DropDocuments(question);
    if (names.empty()) return;
    Warn(
        fmt::format("left out again: the question and {} document(s): {}; /add reads one with the "
                    "next question, /reset those of -f",
                    names.size(), fmt::join(names, ", ")));
  }

  void Reset() {
    const size_t documents = session_.Reset();
    if (flags_.quiet) return;
    Warn(documents == 0 ? "the conversation is forgotten"
                        : fmt::format("the conversation is forgotten; {} document(s) of -f are "
                                      "read again with the next question",
                                      documents));
  }

  void Obey(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const size_t begin = line.find_first_not_of(' ', space);
    const std::string argument =
        space == std::string::npos || begin == std::string::npos ? "" : line.substr(begin);
    if (name == "/quit") {
      quit_ = true;
    } else if (name == "/reset") {
      Reset();
    } else if (name == "/restore") {
      Restore();
    } else if (name == "/stats") {
      PrintStats();
    } else if (name == "/help") {
      WriteErrorLines(kHelp);
    } else if (name == "/add") {
      Add(argument);
    } else {
      const std::string offer =
          DidYouMean(name, {"/add", "/restore", "/reset", "/stats", "/help", "/quit"});
      Throw(ErrorKind::kUsage, "unknown command '{}'{}", name,
            offer.empty() ? "; /help lists them" : offer);
    }
  }

  void Add(const std::string& path) {
    if (path.empty()) Throw(ErrorKind::kUsage, "/add needs a file or a folder");
    PromptFlags flags = flags_.prompt;
    flags.files = {path};
    flags.protect.clear();
    DocumentSet set = ReadDocuments(flags);
    if (!flags_.quiet)
      Warn(fmt::format("{} document(s) for the next question", set.documents.size()));
    session_.AddDocuments(std::move(set));
  }

  void PrintStats() const {
    WriteErrorLines(fmt::format("turn {}, {} of {} tokens of context used\n", session_.turns(),
                                FormatCount(session_.n_tokens()), FormatCount(context_tokens_)));
    if (session_.last().has_value()) WriteErrorLines(FormatTable(*session_.last()));
  }

  void Fail(const Error& error) {
    Warn(error.what());
    const ExitKind kind = DescribeError(error.kind());
    RememberFailure(kind);
    if (json_) output_.Write(DumpJson(ErrorJson(kind.name, error.what()), /*indent=*/false) + "\n");
  }

  void RememberFailure(ExitKind kind) {
    if (exit_code_ == 0) exit_code_ = kind.exit_code;
  }

  const ChatFlags& flags_;
  ChatSession& session_;
  int64_t context_tokens_;
  bool json_;
  bool interactive_;
  Output output_;
  bool quit_ = false;
  int killed_by_ = 0;
  int exit_code_ = 0;
};

int Chat(const ChatFlags& flags, bool json) {
  Validate(flags.generation);
  DocumentSet set = ReadDocuments(flags.prompt);
  LoadedModel loaded =
      LoadModel(flags.model, {flags.generation.arm}, ReadChatTemplate(flags.prompt));
  const int64_t context = loaded.engine->context_tokens();
  if (!flags.quiet) {
    if (!loaded.tokenizer->has_chat_template()) {
      Warn("the model has no chat template: plain completion");
    }
    if (isatty(STDIN_FILENO) == 1) {
      Warn(fmt::format("{}, {} tokens of context; /help lists the commands", loaded.name,
                       FormatCount(context)));
    }
  }
  ChatSession session(&flags, &loaded, std::move(set));
  return Repl(flags, session, context, json).Run();
}

}  // namespace

void AddChatCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command =
      app.add_subcommand("chat", "Talk with a model, about documents if given; /help once inside");
  AddPromptFlags(*command, flags->prompt);
  AddModelFlags(*command, flags->model);
  AddGenerationFlags(*command, flags->generation);
  AddAutoFlags(*command, flags->model);
  AddJsonFlag(*command, context);
  command->add_flag("-q,--quiet", flags->quiet, "No progress bar, no notes")->group("Output");
  command->footer(
      "Example: a conversation over a folder (each later question reads only what is new)\n"
      "  winnow chat -m model.gguf -f notes/");
  command->callback([flags, &context] {
    context.run = [flags, &context] { return Chat(*flags, context.json); };
  });
}

}  // namespace winnow
