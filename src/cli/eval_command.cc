#include "cli/eval_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/auto_profile.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "cli/result_folder.h"
#include "cli/signals.h"
#include "core/error.h"
#include "eval/evaluation.h"
#include "eval/jsonl_task.h"
#include "eval/report.h"
#include "policy/arm.h"

namespace winnow {
namespace fs = std::filesystem;
namespace {

using nlohmann::ordered_json;

struct EvalFlags {
  ModelFlags model;
  std::vector<std::string> tasks;
  std::vector<int64_t> lengths = {4096};
  int64_t samples = 0;
  std::vector<std::string> text;
  std::string jsonl;
  int64_t continuation = TaskInput{}.continuation_tokens;
  uint64_t seed = 1;
  std::vector<std::string> arms = {"auto"};
  double margin = JudgeOptions{}.margin;
  bool no_chat_template = false;
  std::string out;
  bool quiet = false;
};

constexpr int64_t kDefaultSamples = 20;

// samples.jsonl and results.json below one folder; without a folder nothing is written.
class ResultFolder {
 public:
  explicit ResultFolder(const std::string& path) : path_(path) {
    if (path.empty()) return;
    MakeResultFolder(path, kSamples, "evaluation");
    const fs::path samples = fs::path(path) / kSamples;
    errno = 0;
    samples_.open(samples, std::ios::binary);
    Check(samples_, samples);
  }

  void AddSample(const ordered_json& line) {
    if (path_.empty()) return;
    errno = 0;
    samples_ << DumpJson(line, /*indent=*/false) << '\n' << std::flush;
    Check(samples_, fs::path(path_) / kSamples);
  }

  void WriteResults(const ordered_json& results) {
    if (path_.empty()) return;
    WriteResultFile(path_, "results.json", DumpJson(results, /*indent=*/true) + "\n");
  }

 private:
  static constexpr char kSamples[] = "samples.jsonl";

  static void Check(const std::ofstream& stream, const fs::path& path) {
    if (stream) return;
    Throw(ErrorKind::kResource, "cannot write {}: {}", path.string(),
          errno == 0 ? "unknown cause" : std::strerror(errno));
  }

  std::string path_;
  std::ofstream samples_;
};

// On a terminal one line that changes; elsewhere a line a sample, for logs.
class Progress {
 public:
  Progress(bool enabled, int64_t total)
      : enabled_(enabled), terminal_(isatty(STDERR_FILENO) == 1), total_(total) {}
  ~Progress() { Wipe(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Start(int64_t number, const EvalSample& sample) {
    what_ = fmt::format("sample {} of {}: {}", number + 1, total_, sample.task);
    if (sample.length > 0) what_ += fmt::format(" {}", sample.length);
  }
  void Arm(std::string_view arm) {
    if (enabled_ && terminal_)
      WriteError(fmt::format("\r\x1b[K{}, {}", EscapeControls(what_), arm));
  }
  void Done(const EvalSample& sample, const std::vector<ArmRun>& runs) {
    if (!enabled_ || terminal_) return;
    std::vector<std::string> parts;
    parts.reserve(runs.size());
    for (const ArmRun& run : runs) {
      parts.push_back(!run.error.empty()       ? run.arm + " failed: " + run.error
                      : sample.answers.empty() ? fmt::format("{} {:.1f} s", run.arm, run.seconds)
                                               : fmt::format("{} {:.2g}", run.arm, run.score));
    }
    WriteErrorLines(fmt::format("{}: {}\n", what_, fmt::join(parts, ", ")));
  }
  void Wipe() const {
    if (enabled_ && terminal_) WriteError("\r\x1b[K");
  }

 private:
  bool enabled_;
  bool terminal_;
  int64_t total_;
  std::string what_;
};

template <typename T>
void CheckDistinct(const std::vector<T>& values, const char* what) {
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) != value) {
      Throw(ErrorKind::kUsage, "the {} {} is given twice", what, *value);
    }
  }
}

// Without --task: what the given text allows, or nothing but the file of --jsonl.
std::vector<const Task*> ChooseTasks(const EvalFlags& flags) {
  CheckDistinct(flags.tasks, "task");
  std::vector<const Task*> tasks;
  for (const std::string& name : flags.tasks) tasks.push_back(&FindTask(name));
  if (!tasks.empty() || !flags.jsonl.empty()) return tasks;
  for (const Task& task : AllTasks()) {
    if (!task.needs_text || !flags.text.empty()) tasks.push_back(&task);
  }
  return tasks;
}

Book ReadBook(const std::vector<std::string>& paths) {
  const DocumentSet set = LoadDocuments(paths, /*strict=*/false);
  for (const SkippedFile& file : set.skipped) {
    Warn(fmt::format("skipped {}: {}", file.path, file.reason));
  }
  Book book(set.documents);
  if (!paths.empty() && book.empty()) {
    Throw(ErrorKind::kInput, "nothing to read in the files given with --text");
  }
  return book;
}

ordered_json Results(const EvalFlags& flags, const std::string& model, const Evaluation& evaluation,
                     const EvalReport& report, bool complete) {
  std::vector<std::string_view> tasks;
  for (const Task* task : evaluation.tasks) tasks.push_back(task->name);
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? ordered_json(nullptr) : ordered_json(text);
  };
  return {{"schema", "winnow.eval/1"},
          {"model", model},
          {"kv_type", flags.model.kv_type},
          {"chat_template", evaluation.input.prompt.chat_template &&
                                evaluation.input.tokenizer->has_chat_template()},
          {"tasks", tasks},
          {"lengths", evaluation.lengths},
          {"samples", evaluation.samples},
          {"continuation_tokens", flags.continuation},
          {"text", flags.text},
          {"jsonl", text_or_null(flags.jsonl)},
          {"seed", flags.seed},
          {"arms", evaluation.arms},
          {"margin", flags.margin},
          {"complete", complete},
          {"cells", report.CellsJson()}};
}

Evaluation MakeEvaluation(const EvalFlags& flags, const Tokenizer& tokenizer, const Book& book,
                          int64_t context_tokens) {
  Evaluation evaluation;
  evaluation.tasks = ChooseTasks(flags);
  evaluation.lengths = flags.lengths;
  evaluation.samples = flags.samples > 0 ? flags.samples : kDefaultSamples;
  evaluation.input = {.tokenizer = &tokenizer,
                      .book = &book,
                      .prompt = {.chat_template = !flags.no_chat_template},
                      .continuation_tokens = flags.continuation,
                      .seed = flags.seed};
  evaluation.arms = ReferenceFirst(flags.arms);
  if (const int chunk = ArmChunkTokens(flags.arms); chunk > 0) {
    evaluation.input.prompt.chunk_tokens = chunk;
  }
  if (!flags.jsonl.empty()) {
    evaluation.given = ReadJsonl(flags.jsonl, evaluation.input, context_tokens, flags.samples);
  }
  CheckEvaluation(evaluation, context_tokens);
  return evaluation;
}

int Run(const EvalFlags& flags, bool json) {
  // Before anything is loaded.
  ReferenceFirst(flags.arms);
  ChooseTasks(flags);
  CheckDistinct(flags.lengths, "length");
  const Book book = ReadBook(flags.text);
  const LoadedModel loaded = LoadModel(flags.model, flags.arms);
  const Evaluation evaluation =
      MakeEvaluation(flags, *loaded.tokenizer, book, loaded.engine->context_tokens());
  ResultFolder folder(flags.out);
  EvalReport report({.margin = flags.margin, .seed = flags.seed});

  bool complete = false;
  int signal = 0;
  {
    Progress progress(!flags.quiet, evaluation.total());
    const InterruptScope interrupts;
    complete = RunEvaluation(
        loaded.engine.get(), evaluation,
        {.arms = {.should_stop = [&] { return interrupts.Pending() != 0; },
                  .on_arm = [&](std::string_view arm) { progress.Arm(arm); }},
         .on_start = [&](int64_t number,
                         const EvalSample& sample) { progress.Start(number, sample); },
         .on_sample =
             [&](const EvalSample& sample, const std::vector<ArmRun>& runs) {
               report.Add(sample, runs);
               progress.Done(sample, runs);
               for (const ArmRun& run : runs) folder.AddSample(SampleJson(sample, run));
             }});
    signal = interrupts.Pending();
  }
  const ordered_json results = Results(flags, loaded.name, evaluation, report, complete);
  int exit_code = complete ? 0 : 128 + signal;
  try {
    folder.WriteResults(results);
  } catch (const Error& error) {  // they are printed all the same
    Warn(error.what());
    exit_code = DescribeError(error.kind()).exit_code;
  }
  if (!complete) Warn("stopped: what was finished is reported");
  Output output;
  output.Write(json ? DumpJson(results, /*indent=*/true) + "\n" : report.Table());
  return output.ExitCode(exit_code);
}

std::string TaskHelp() {
  std::string help = "Tasks (* needs --text; the others make their own filler):\n";
  for (const Task& task : AllTasks()) {
    help += fmt::format("  {:<12}{} {}\n", task.name, task.needs_text ? '*' : ' ', task.summary);
  }
  return help;
}

void AddTaskFlags(CLI::App& command, EvalFlags& flags) {
  const std::string group = "Tasks";
  command
      .add_option("--task", flags.tasks,
                  "Tasks, see below; by default all that the given text allows")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->group(group);
  command
      .add_option("--length", flags.lengths,
                  "Tokens of a prompt and its answer together, chat template included")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(Between(1, 1 << 30))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--samples", flags.samples,
                  fmt::format("Samples of each task and length (by default {}), and of each task "
                              "of --jsonl (by default all)",
                              kDefaultSamples))
      ->type_name("N")
      ->check(Between(1, 1'000'000))
      ->group(group);
  command
      .add_option("--text", flags.text, "Books to hide needles in and to continue: files, folders")
      ->type_name("FILE|DIR")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option("--jsonl", flags.jsonl,
                  "Samples from a file in kvpress's columns: context, question, answer, ...")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(group);
  command.add_option("--continuation", flags.continuation, "Tokens that the task book goes on for")
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 30))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", flags.seed, "Seed of the samples and of the bootstrap")
      ->type_name("N")
      ->check(Between(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str()
      ->group(group);
  AddNoChatTemplateFlag(command, flags.no_chat_template, group);
}

}  // namespace

void AddEvalCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app.add_subcommand(
      "eval", "Judge arms against dense on tasks with known answers, and along dense's output");
  AddTaskFlags(*command, *flags);
  command
      ->add_option("--arm", flags->arms,
                   "Arms to judge, repeatable; dense is the reference and always runs")
      ->type_name("ARM")
      ->expected(1)
      ->take_all()
      ->capture_default_str()
      ->group("Judgement");
  command
      ->add_option("--margin", flags->margin,
                   "Loss of score that the noninferiority test still counts as none")
      ->type_name("X")
      ->check(RealBetween(1e-6, 0.999))
      ->capture_default_str()
      ->group("Judgement");
  AddModelFlags(*command, flags->model);
  AddAutoFlags(*command, flags->model);
  AddJsonFlag(*command, context);
  command
      ->add_option("--out", flags->out, "Folder for samples.jsonl and results.json (docs/json.md)")
      ->type_name("DIR")
      ->check(NotEmpty())
      ->group("Output");
  command->add_flag("-q,--quiet", flags->quiet, "No progress")->group("Output");
  command->footer(TaskHelp() +
                  "\nExample: does reading less still find needles?\n"
                  "  winnow eval -m model.gguf --text book.txt --task needle,multikey "
                  "--length 4096,7000 \\\n"
                  "      --arm select=sketch,residual=sketch");
  command->callback(
      [flags, &context] { context.run = [flags, &context] { return Run(*flags, context.json); }; });
}

}  // namespace winnow
