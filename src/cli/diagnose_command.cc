#include "cli/diagnose_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/diagnose_prefill.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/result_folder.h"
#include "cli/signals.h"
#include "core/error.h"
#include "eval/diagnosis_report.h"
#include "eval/diagnosis_run.h"
#include "policy/residual/feature_file.h"

namespace winnow {
namespace fs = std::filesystem;
namespace {

using nlohmann::ordered_json;

// Those that need no file.
std::vector<std::string> DefaultResiduals() {
  std::vector<std::string> names = CompletionNames();
  std::erase(names, CompletionName(Completion::kPhi));
  return names;
}

struct DiagnoseFlags {
  ModelFlags model;
  PromptFlags prompt;
  std::string question;
  int64_t positions = 4;
  std::vector<std::string> residuals = DefaultResiduals();
  std::string phi;  // a file of feature maps
  DiagnosisOptions options;
  DiagnosePrefillFlags prefill;
  std::string out;
  bool quiet = false;
};

// The flags as options; selection alone comes first, whether it was named or not.
DiagnosisOptions ToOptions(const DiagnoseFlags& flags) {
  DiagnosisOptions options = flags.options;
  options.completions = {Completion::kNone};
  for (const std::string& name : flags.residuals) {
    const Completion completion = ParseCompletion(name);
    if (completion != Completion::kNone) options.completions.push_back(completion);
  }
  if (flags.phi.empty() && options.Uses(Completion::kPhi)) {
    Throw(ErrorKind::kUsage, "the estimate 'phi' needs a file of feature maps: --phi FILE");
  }
  if (!flags.phi.empty() && !options.Uses(Completion::kPhi)) {
    options.completions.push_back(Completion::kPhi);
  }
  options.Validate();
  return options;
}

void WriteFolder(const std::string& folder, const std::string& model, const ordered_json& record,
                 const DiagnosisRun& run, const DiagnosisOptions& options) {
  WriteResultFile(folder, "points.csv", PointsCsv(run, options));
  std::string title = fs::path(model).filename().string();
  if (title.ends_with(".gguf")) title.resize(title.size() - 5);
  title += fmt::format(", {} tokens", run.n_prompt);
  for (const FigureFile& figure : DiagnosisFigures(run, options, title)) {
    WriteResultFile(folder, figure.name, figure.svg);
  }
  WriteResultFile(folder, "diagnose.json", DumpJson(record, /*indent=*/true) + "\n");
}

std::string Summary(const DiagnosisRun& run, const DiagnosisOptions& options) {
  std::string text = fmt::format(
      "{} prompt tokens, {} decode steps; {} of {} tokens exact: {} first, {} last, {} retrieved\n",
      run.n_prompt, run.n_positions,
      std::min(run.n_prompt, run.budget + options.anchors.sinks + options.anchors.tail),
      run.n_prompt, options.anchors.sinks, options.anchors.tail, run.budget);
  if (!run.local_layers.empty()) {
    text +=
        fmt::format("{} layers read only their window and are left out\n", run.local_layers.size());
  }
  return text + "\n" + DiagnosisTable(run, options);
}

std::optional<DiagnosisRun> RunShown(const DiagnoseFlags& flags, const LoadedModel& loaded,
                                     const Prompt& prompt, const DiagnosisOptions& options,
                                     int* signal) {
  ProgressBar progress(!flags.quiet);
  const ChangingLine line(!flags.quiet);
  const InterruptScope interrupts;
  std::optional<DiagnosisRun> run =
      RunDiagnosis(loaded.engine.get(), loaded.pool.get(), loaded.backbone->config(), prompt.tokens,
                   flags.positions, options,
                   {.should_stop = [&] { return interrupts.Pending() != 0; },
                    .on_prefill = [&](const PrefillProgress& p) { progress.Update(p); },
                    .on_position =
                        [&](int64_t position, int64_t total) {
                          progress.Clear();
                          line.Show(fmt::format("decode step {} of {}", position + 1, total));
                        }});
  *signal = interrupts.Pending();
  return run;
}

int RunPrefill(const DiagnoseFlags& flags, const PruneDiagnosisOptions& options,
               const LoadedModel& loaded, const Prompt& prompt, bool json) {
  int signal = 0;
  std::optional<PrefillDiagnosis> diagnosis =
      DiagnosePrefill(loaded, prompt, options, flags.quiet, &signal);
  if (!diagnosis.has_value()) return 128 + signal;
  ordered_json record = {{"schema", "winnow.diagnose_prefill/1"},
                         {"model", loaded.name},
                         {"chat_template", prompt.used_chat_template}};
  record.update(diagnosis->record);
  const std::string text = DumpJson(record, /*indent=*/true) + "\n";
  if (!flags.out.empty()) WriteResultFile(flags.out, "diagnose.json", text);
  Output output;
  output.Write(json ? text : diagnosis->table);
  return output.ExitCode(0);
}

int Run(const DiagnoseFlags& flags, bool json) {
  DiagnosisOptions options = ToOptions(flags);
  const PruneDiagnosisOptions prune = ToOptions(flags.prefill);
  const std::string question = flags.question == "-" ? ReadTextFile("-") : flags.question;
  const DocumentSet set = ReadDocuments(flags.prompt);
  if (question.empty() && set.documents.empty()) {
    Throw(ErrorKind::kInput, "the prompt is empty: give a question with -p, documents with -f");
  }
  MakeResultFolder(flags.out, "diagnose.json", "diagnosis");
  const std::string arm = flags.prefill.enabled ? "dense" : DiagnosisArm(options);
  const LoadedModel loaded = LoadModel(flags.model, {arm}, ReadChatTemplate(flags.prompt));
  const Prompt prompt = BuildPrompt(*loaded.tokenizer, set.documents, question,
                                    ToPromptOptions(flags.prompt, set.documents, {"dense"}));
  if (flags.prefill.enabled) return RunPrefill(flags, prune, loaded, prompt, json);
  FeatureMaps maps;
  if (!flags.phi.empty()) {
    maps = LoadFeatureMaps(flags.phi, loaded.backbone->config(), loaded.path);
    options.maps = &maps;
  }
  int signal = 0;
  const std::optional<DiagnosisRun> run = RunShown(flags, loaded, prompt, options, &signal);
  if (!run.has_value()) return 128 + signal;
  ordered_json record = {
      {"schema", "winnow.diagnose/1"},
      {"model", loaded.name},
      {"kv_type", flags.model.kv_type},
      {"chat_template", prompt.used_chat_template},
      {"phi", flags.phi.empty() ? ordered_json(nullptr) : ordered_json(flags.phi)}};
  record.update(ToJson(*run, options));
  if (!flags.out.empty()) WriteFolder(flags.out, loaded.name, record, *run, options);
  Output output;
  output.Write(json ? DumpJson(record, /*indent=*/true) + "\n" : Summary(*run, options));
  return output.ExitCode(0);
}

constexpr const char* kFigureGroup = "Figures";

void AddFigureFlags(CLI::App& command, DiagnoseFlags& flags) {
  const std::string group = kFigureGroup;
  const auto count = [&](const std::string& name, int64_t& value, const std::string& help) {
    command.add_option(name, value, help)
        ->type_name("N")
        ->check(Between(1, 1 << 20))
        ->capture_default_str()
        ->group(group);
  };
  DiagnosisOptions& options = flags.options;
  count("-n,--positions", flags.positions, "Decode steps whose attention is looked at");
  command
      .add_option("--residual", flags.residuals,
                  "Estimates of what was not read, compared with dropping it (none)")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->transform(OneOf("residual", CompletionNames()))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--phi", flags.phi,
                  "Trained feature maps of the model (safetensors or GGUF), which add the estimate "
                  "'phi'")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option("--fraction", options.fraction,
                  "Share of the prompt that is read exactly where no K is named; the first 4 and "
                  "the last 16 tokens are part of it")
      ->type_name("X")
      ->check(RealBetween(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--ks", options.ks, "Retrieved tokens along the curves, ascending")
      ->type_name("K,...")
      ->delimiter(',')
      ->check(Between(0, 1 << 30))
      ->capture_default_str()
      ->group(group);
  count("--sample", options.sample_tokens, "Tokens that the estimate 'sample' draws");
  count("--pages", options.routing.pages, "Pages with the best mean keys, for the leakage");
  count("--tokens", options.routing.tokens, "The best tokens of these pages, for the leakage");
  command.add_option("--seed", options.seed, "Seed of the samples")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void AddDiagnoseCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<DiagnoseFlags>();
  CLI::App* command = app.add_subcommand(
      "diagnose", "The papers' figures of the attention over one prompt, by layer and head");
  AddQuestionFlag(*command, flags->question);
  AddPromptFlags(*command, flags->prompt);
  AddModelFlags(*command, flags->model);
  AddFigureFlags(*command, *flags);
  AddDiagnosePrefillFlags(*command, flags->prefill,
                          command->get_options([](const CLI::Option* option) {
                            return option->get_group() == kFigureGroup;
                          }));
  AddJsonFlag(*command, context);
  command
      ->add_option("-o,--out", flags->out,
                   "Folder for diagnose.json, points.csv and the figures as SVG (docs/json.md)")
      ->type_name("DIR")
      ->check(NotEmpty())
      ->group("Output");
  command->add_flag("-q,--quiet", flags->quiet, "No progress")->group("Output");
  command->footer(
      "Example: what would few tokens leave out, and which estimate makes up for it?\n"
      "  winnow diagnose -m model.gguf -f book.txt -p \"Who did it?\" --out figures/\n"
      "Example: what does it do to leave the weakest chunks out above layer 10?\n"
      "  winnow diagnose -m model.gguf -f book.txt -p \"Who did it?\" --prefill --layer 10");
  command->callback(
      [flags, &context] { context.run = [flags, &context] { return Run(*flags, context.json); }; });
}

}  // namespace winnow
