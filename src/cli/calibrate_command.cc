#include "cli/calibrate_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/auto_profile.h"
#include "cli/calibrate_prefill.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cli/user_cache.h"
#include "core/error.h"
#include "core/memory.h"
#include "eval/calibration.h"
#include "eval/jsonl_task.h"
#include "model/model_hash.h"
#include "model/model_info.h"
#include "model/synthetic.h"
#include "policy/arm.h"

namespace winnow {
namespace fs = std::filesystem;
namespace {

using nlohmann::ordered_json;

struct CalibrateFlags {
  ModelFlags model;
  std::string prompts;
  std::vector<std::string> text;
  int64_t samples = 2;
  int64_t length = 2048;
  bool no_generated = false;
  uint64_t seed = 1;
  bool no_chat_template = false;
  FidelityTarget target;
  std::string gates = "layers";
  std::string prefill;  // "early", "late"; empty: decode's profile
  double keep = PruneProfile{}.keep;
  std::vector<std::string> arms;
  std::string out;
  bool quiet = false;
};

constexpr int64_t kContinuation = 64;  // tokens that the task book goes on for
// Share of the available memory that the prompts' pages may take.
constexpr double kMemoryShare = 0.6;

struct Halves {
  Book calibrate;
  Book test;
};

// The first half of each text is calibrated on and the second tested on.
Halves ReadHalves(const std::vector<std::string>& paths) {
  PromptFlags flags;
  flags.files = paths;
  std::vector<Document> first = ReadDocuments(flags).documents;
  std::vector<Document> second = first;
  for (size_t i = 0; i < first.size(); ++i) {
    const size_t half = first[i].text.find('\n', first[i].text.size() / 2);
    const size_t cut = std::min(half, first[i].text.size());
    first[i].text.resize(cut);
    second[i].text.erase(0, cut);
  }
  return {Book(first), Book(second)};
}

// With --prefill only those that say where the answer stands.
std::vector<const Task*> ChooseTasks(const CalibrateFlags& flags) {
  std::vector<const Task*> tasks;
  if (flags.no_generated) return tasks;
  for (const Task& task : AllTasks()) {
    if (!flags.prefill.empty() && !task.calibrates_pruning) continue;
    if (!task.needs_text || !flags.text.empty()) tasks.push_back(&task);
  }
  return tasks;
}

std::vector<EvalSample> Generate(const std::vector<const Task*>& tasks, const TaskInput& input,
                                 int64_t samples) {
  std::vector<EvalSample> made;
  for (const Task* task : tasks) {
    for (int64_t i = 0; i < samples; ++i) made.push_back(MakeSample(*task, input, i));
  }
  return made;
}

void AddSamples(const CalibrateFlags& flags, const LoadedModel& loaded, const Halves& books,
                CalibrationOptions* options) {
  const int64_t context = loaded.engine->context_tokens();
  TaskInput input{.tokenizer = loaded.tokenizer.get(),
                  .book = &books.calibrate,
                  .prompt = {.chat_template = !flags.no_chat_template},
                  .length = std::min(flags.length, context),
                  .continuation_tokens = kContinuation,
                  .seed = flags.seed};
  options->calibrate = Generate(ChooseTasks(flags), input, flags.samples);
  if (!flags.prompts.empty()) {
    // The lines of a task take turns.
    std::vector<EvalSample> given = ReadJsonl(flags.prompts, input, context, 2 * flags.samples);
    if (given.size() < 2) {
      Throw(ErrorKind::kInput, "{}: one prompt cannot be both calibrated on and tested on",
            flags.prompts);
    }
    for (size_t i = 0; i < given.size(); ++i) {
      (i % 2 == 0 ? options->calibrate : options->test).push_back(std::move(given[i]));
    }
  }
  input.book = &books.test;
  ++input.seed;
  std::vector<EvalSample> test = Generate(ChooseTasks(flags), input, flags.samples);
  options->test.insert(options->test.end(), std::make_move_iterator(test.begin()),
                       std::make_move_iterator(test.end()));
}

// Room for the prompts that calibrate, so that each is read once; what else runs takes one more.
uint64_t PoolBytes(const CalibrateFlags& flags, const ModelConfig& config,
                   const std::vector<std::string>& arms) {
  const PageLayout layout(config.kv_heads, kDefaultPageSlots, config.head_dim,
                          ParseDType(flags.model.kv_type), ArmPlanes(arms));
  const auto tasks = static_cast<int64_t>(ChooseTasks(flags).size()) + 4;  // some of --prompts
  const int64_t context = std::max(flags.length, flags.model.context);
  const int64_t tokens = std::min(flags.length, config.context_length) * tasks * flags.samples +
                         std::min(2 * context, config.context_length);
  const auto wanted = static_cast<uint64_t>(tokens / layout.slots * config.n_layers) *
                      static_cast<uint64_t>(layout.TotalBytes());
  return std::min(
      wanted, static_cast<uint64_t>(kMemoryShare * static_cast<double>(AvailableMemoryBytes())));
}

// On a terminal one line that changes, and one that stays for each arm tried.
class Progress {
 public:
  explicit Progress(bool enabled) : enabled_(enabled), line_(enabled) {}
  using Clock = std::chrono::steady_clock;

  void Work(const std::string& what) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start_).count();
    line_.Show(fmt::format("{}:{:02} {}", seconds / 60, seconds % 60,
                           EscapeControls(what).substr(0, 100)));
  }
  void Tried(const Trial& trial) {
    if (!enabled_) return;
    Wipe();
    WriteErrorLines(fmt::format("{}: bytes {:.3f}, KL {}{:.2g}, top-1 {:.3f}, {}: {}\n",
                                trial.stage, trial.figures.bytes_ratio, trial.cut_short ? "> " : "",
                                trial.figures.kl, trial.figures.top1_agreement,
                                trial.met ? "met" : "missed", trial.arm));
  }
  void Wipe() const { line_.Show(""); }

 private:
  bool enabled_;
  ChangingLine line_;
  Clock::time_point start_ = Clock::now();
};

// What repeats it, with files by their names alone: a profile travels.
std::string CommandLine(const CalibrateFlags& flags) {
  const auto name = [](const std::string& path) { return fs::path(path).filename().string(); };
  std::string line = fmt::format("winnow calibrate -m {}", name(flags.model.model));
  for (const std::string& text : flags.text) line += " --text " + name(text);
  if (!flags.prompts.empty()) line += " --prompts " + name(flags.prompts);
  if (flags.no_generated) line += " --no-generated";
  line +=
      fmt::format(" --samples {} --length {} --seed {}", flags.samples, flags.length, flags.seed);
  if (flags.prefill.empty()) {
    line += fmt::format(" --target {} --top1 {} --gates {}", flags.target.kl,
                        flags.target.top1_agreement, flags.gates);
    for (const std::string& arm : flags.arms) line += " --arm " + arm;
  } else {
    line += fmt::format(" --prefill {} --keep {}", flags.prefill, flags.keep);
  }
  if (flags.model.kv_type != "f16") line += " --kv-type " + flags.model.kv_type;
  return line;
}

ModelProfile MakeProfile(const CalibrateFlags& flags, const LoadedModel& loaded,
                         const CalibrationResult& result) {
  ModelProfile profile;
  profile.model = DescribeModel(loaded.backbone->config(), HashModelFile(loaded.path));
  profile.arm = result.arm;
  profile.completion_off = result.completion_off;
  profile.target = flags.target;
  profile.calibration = result.calibration;
  profile.test = result.test;
  profile.search_complete = result.complete;
  profile.version = WINNOW_VERSION;
  profile.command = CommandLine(flags);
  return profile;
}

// Where the profile goes: -o, or the cache folder.
std::string Store(const CalibrateFlags& flags, const ModelProfile& profile) {
  const UserCache cache;
  const std::string name = CachedProfileName(profile.model.hash);
  std::string path = flags.out.empty() ? cache.PathOf(name).string() : flags.out;
  const bool stored = flags.out.empty() ? cache.Write(name, FormatProfile(profile))
                                        : ReplaceFile(path, FormatProfile(profile));
  if (!stored) {
    Throw(ErrorKind::kResource, "the profile cannot be written to {}",
          path.empty() ? "a cache folder, for there is none: name a file with -o" : path);
  }
  return path;
}

void CheckFlags(const CalibrateFlags& flags) {
  if (IsSyntheticName(flags.model.model)) {
    Throw(ErrorKind::kUsage, "{} has random weights: there is nothing to calibrate",
          flags.model.model);
  }
  for (const std::string& arm : flags.arms) {
    if (ParseArm(arm).fingerprint != 0) continue;
    Throw(ErrorKind::kUsage, "'{}' is no arm to choose: dense is what they are held against", arm);
  }
  if (!flags.prefill.empty() && flags.out.empty()) {
    Throw(ErrorKind::kUsage,
          "--prefill makes a profile that arms name (prefill=entroprefill,profile=FILE): say with "
          "-o where it goes");
  }
  if (flags.no_generated && flags.prompts.empty()) {
    Throw(ErrorKind::kUsage, "--no-generated leaves no prompts: give some with --prompts");
  }
  if (flags.no_generated && !flags.text.empty()) {
    Throw(ErrorKind::kUsage, "--text and --no-generated contradict each other");
  }
  constexpr int64_t kShortest = 1536;  // a third of it holds every task
  if (!flags.prefill.empty() && flags.length < kShortest) {
    Throw(ErrorKind::kUsage,
          "--length {}: with --prefill prompts begin at a third of it, so {} is "
          "the least",
          flags.length, kShortest);
  }
  if (flags.out.empty()) return;
  // Not after minutes of work.
  const fs::path folder = fs::absolute(flags.out).parent_path();
  if (access(folder.c_str(), W_OK) != 0 || fs::is_directory(flags.out)) {
    Throw(ErrorKind::kResource, "{}: no file can be written there", flags.out);
  }
}

CalibrationResult Search(const CalibrateFlags& flags, const LoadedModel& loaded,
                         const CalibrationOptions& options, int* signal) {
  Progress progress(!flags.quiet);
  const InterruptScope interrupts;
  bool stopped = false;
  const auto should_stop = [&] {
    if (interrupts.Pending() != 0 && !std::exchange(stopped, true)) {
      progress.Wipe();
      Warn("stopping: what was found is tested and kept; once more ends at once, without it");
    }
    return stopped;
  };
  CalibrationResult result =
      Calibrate(loaded.engine.get(), loaded.backbone->config(), options,
                {.should_stop = should_stop,
                 .on_work = [&](const std::string& what) { progress.Work(what); },
                 .on_trial = [&](const Trial& trial) { progress.Tried(trial); }});
  *signal = interrupts.Pending();
  return result;
}

ordered_json ResultJson(const CalibrationResult& result, const ModelProfile& profile,
                        const std::string& written) {
  ordered_json tried = ordered_json::array();
  for (const Trial& trial : result.tried) tried.push_back(ToJson(trial));
  return {{"schema", "winnow.calibrate/1"},
          {"complete", result.complete},
          {"met", result.met},
          {"profile", written.empty() ? ordered_json(nullptr) : ToJson(profile)},
          {"written", written.empty() ? ordered_json(nullptr) : ordered_json(written)},
          {"dense_attention_ms", result.dense_attention_ms},
          {"tried", std::move(tried)}};
}

// Prompts of a third, two thirds and all of the length.
std::vector<EvalSample> PrefillSamples(const CalibrateFlags& flags, TaskInput input) {
  std::vector<EvalSample> samples;
  const int64_t length = input.length;
  for (const int64_t third : {1, 2, 3}) {
    input.length = third * length / 3;
    std::vector<EvalSample> made = Generate(ChooseTasks(flags), input, flags.samples);
    samples.insert(samples.end(), std::make_move_iterator(made.begin()),
                   std::make_move_iterator(made.end()));
  }
  return samples;
}

int RunPrefill(const CalibrateFlags& flags, bool json) {
  const Halves books = ReadHalves(flags.text);
  const LoadedModel loaded = LoadModel(flags.model, {"dense"});
  const int64_t context = loaded.engine->context_tokens();
  TaskInput input{.tokenizer = loaded.tokenizer.get(),
                  .book = &books.calibrate,
                  .prompt = {.chat_template = !flags.no_chat_template},
                  .length = std::min(flags.length, context),
                  .seed = flags.seed};
  PrefillCalibration calibration{
      .style = flags.prefill == "early" ? PruneStyle::kEarly : PruneStyle::kLate,
      .keep = flags.keep,
      .out = flags.out,
      .command = CommandLine(flags),
      .quiet = flags.quiet,
      .calibrate = PrefillSamples(flags, input)};
  if (!flags.prompts.empty()) {
    std::vector<EvalSample> given = ReadJsonl(flags.prompts, input, context, 6 * flags.samples);
    for (size_t i = 0; i < given.size(); ++i) {
      (i % 2 == 0 ? calibration.calibrate : calibration.test).push_back(std::move(given[i]));
    }
  }
  input.book = &books.test;
  ++input.seed;
  for (EvalSample& sample : PrefillSamples(flags, input)) {
    calibration.test.push_back(std::move(sample));
  }
  return CalibratePrefill(loaded, calibration, json);
}

int Run(CalibrateFlags& flags, bool json) {
  CheckFlags(flags);
  if (!flags.prefill.empty()) return RunPrefill(flags, json);
  const Halves books = ReadHalves(flags.text);
  const ModelConfig config = ReadModelInfo(ResolveModel(flags.model.model).path).config;
  const std::vector<std::string> arms = CalibrationArms(flags.arms, config.n_layers);
  if (flags.model.kv_memory == 0) flags.model.kv_memory = PoolBytes(flags, config, arms);
  const LoadedModel loaded = LoadModel(flags.model, arms);
  CalibrationOptions options{.target = flags.target,
                             .gates = flags.gates == "none"    ? GateSearch::kNone
                                      : flags.gates == "heads" ? GateSearch::kHeads
                                                               : GateSearch::kLayers,
                             .arms = flags.arms};
  AddSamples(flags, loaded, books, &options);
  int signal = 0;
  const CalibrationResult result = Search(flags, loaded, options, &signal);
  ModelProfile profile;
  std::string written;
  if (result.arm != "dense") {
    profile = MakeProfile(flags, loaded, result);
    written = Store(flags, profile);
  }
  Output output;
  output.Write(json ? DumpJson(ResultJson(result, profile, written), /*indent=*/true) + "\n"
                    : CalibrationTable(result));
  if (written.empty()) {
    Warn("stopped before anything was found: no profile was written");
    return output.ExitCode(128 + signal);
  }
  if (!result.complete) Warn("stopped: the profile holds what was found by then");
  if (!result.met) {
    Warn(
        "no arm met the target with its margin on the calibration prompts: the profile holds the "
        "closest");
  }
  if (!flags.quiet) Warn("wrote " + written);
  if (const std::string refusal = profile.Refusal(); !refusal.empty()) {
    Warn("auto will read everything: " + refusal);
  }
  return output.ExitCode(result.complete ? 0 : 128 + signal);
}

void AddPromptChoice(CLI::App& command, CalibrateFlags& flags) {
  const std::string group = "Prompts";
  command
      .add_option("--prompts", flags.prompts,
                  "Your own prompts, a JSONL file as `winnow eval --jsonl` takes it: lines are "
                  "calibrated on and tested on in turn")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option("--text", flags.text,
                  "Books for generated prompts: files, folders; the first half of each for "
                  "calibration, the second for the test")
      ->type_name("FILE|DIR")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option("--samples", flags.samples,
                  "Prompts of each generated task and each task of --prompts, and as many to test")
      ->type_name("N")
      ->check(Between(1, 10'000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--length", flags.length, "Tokens of a generated prompt and its answer")
      ->type_name("TOKENS")
      ->check(Between(512, 1 << 30))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--no-generated", flags.no_generated, "Only the prompts of --prompts")
      ->group(group);
  command.add_option("--seed", flags.seed, "Seed of the generated prompts")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  AddNoChatTemplateFlag(command, flags.no_chat_template, group);
}

void AddSearchFlags(CLI::App& command, CalibrateFlags& flags) {
  const std::string group = "Search";
  CLI::Option* const prefill =
      command
          .add_option(
              "--prefill", flags.prefill,
              "Make a profile for pruning documents in mid-prefill instead: 'early' (one layer, "
              "the heads that know best) or 'late' (a few layers, the safest); generated "
              "prompts are then needles of a third, two thirds and all of --length")
          ->type_name("STYLE")
          ->transform(OneOf("style", {"early", "late"}))
          ->group(group);
  command
      .add_option("--keep", flags.keep, "With --prefill: share of the documents' tokens that stays")
      ->type_name("SHARE")
      ->check(RealBetween(0.01, 1.0))
      ->capture_default_str()
      ->needs(prefill)
      ->group(group);
  command
      .add_option("--target", flags.target.kl,
                  "Largest mean KL from dense, in nats, along dense's own output")
      ->type_name("KL")
      ->check(RealBetween(1e-9, 100.0))
      ->capture_default_str()
      ->excludes(prefill)
      ->group(group);
  command
      .add_option("--top1", flags.target.top1_agreement,
                  "Smallest share of positions with dense's likeliest token")
      ->type_name("SHARE")
      ->check(RealBetween(0.0, 1.0))
      ->capture_default_str()
      ->excludes(prefill)
      ->group(group);
  command
      .add_option("--gates", flags.gates,
                  "Where completion may abstain: none, layers, or heads (single KV heads too, "
                  "which takes several times as long)")
      ->type_name("WHERE")
      ->transform(OneOf("choice", {"none", "layers", "heads"}))
      ->capture_default_str()
      ->excludes(prefill)
      ->group(group);
  command
      .add_option("--arm", flags.arms,
                  "Choose from these arms (repeatable) instead of searching sketches, cascades, "
                  "completion, budgets and dense layers")
      ->type_name("ARM")
      ->expected(1)
      ->take_all()
      ->excludes(prefill)
      ->group(group);
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Find the cheapest way to read a model's context that stays close to dense");
  AddPromptChoice(*command, *flags);
  AddSearchFlags(*command, *flags);
  AddModelFlags(*command, flags->model);
  AddJsonFlag(*command, context);
  command
      ->add_option("-o,--out", flags->out,
                   "File for the profile; by default the cache folder, where auto looks for it")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group("Output");
  command->add_flag("-q,--quiet", flags->quiet, "No progress")->group("Output");
  command->footer(
      "Example: what may auto do on this model?\n"
      "  winnow calibrate -m model.gguf --text book.txt --prompts mine.jsonl");
  command->callback(
      [flags, &context] { context.run = [flags, &context] { return Run(*flags, context.json); }; });
}

}  // namespace winnow
