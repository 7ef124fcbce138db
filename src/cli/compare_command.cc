#include "cli/compare_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/auto_profile.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/prune_summary.h"
#include "cli/run_record.h"
#include "cli/signals.h"
#include "core/byte_size.h"
#include "core/error.h"
#include "eval/arm_runs.h"
#include "eval/report.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

struct CompareFlags {
  ModelFlags model;
  PromptFlags prompt;
  std::string question;
  int64_t max_tokens = 128;
  std::vector<std::string> arms = {"auto"};
  bool quiet = false;
};

ordered_json Milliseconds(double seconds, bool known) {
  return known ? ordered_json(seconds * 1e3) : ordered_json(nullptr);
}

ordered_json ToJson(const ArmRun& run) {
  const RequestResult& result = run.result;
  const PhaseLedger& decode = result.ledger.decode;
  return {{"arm", run.arm},
          {"arm_resolved", result.arm_resolved},
          {"arm_reason",
           result.arm_reason.empty() ? ordered_json(nullptr) : ordered_json(result.arm_reason)},
          {"text", result.text},
          {"tokens", result.tokens},
          {"finish_reason", FinishReasonName(result.finish_reason)},
          {"error", run.error.empty() ? ordered_json(nullptr) : ordered_json(run.error)},
          {"first_difference",
           run.first_difference ? ordered_json(*run.first_difference) : ordered_json(nullptr)},
          {"fidelity", run.fidelity ? ToJson(*run.fidelity) : ordered_json(nullptr)},
          {"ttft_ms", Milliseconds(result.ttft_seconds, !result.tokens.empty())},
          {"tpot_ms", Milliseconds(result.SecondsPerToken(), result.tokens.size() >= 2)},
          {"prefill", PrefillJson(result.ledger)},
          {"decode", ToJson(decode)}};
}

std::string FidelityCells(const ArmRun& run) {
  if (!run.fidelity || run.fidelity->positions == 0) return fmt::format("{:>10}{:>8}", "-", "-");
  return fmt::format("{:>10.2g}{:>8.3f}", run.fidelity->MeanKl(), run.fidelity->Top1Agreement());
}

std::string Table(const std::vector<ArmRun>& runs) {
  std::string table;
  for (const ArmRun& run : runs) {
    table += fmt::format("--- {}\n{}\n", run.arm, run.result.text);
    if (!run.error.empty()) table += fmt::format("(failed: {})\n", run.error);
    if (run.result.ledger.pruning != nullptr) {
      table += fmt::format("({})\n", PruningInWords(*run.result.ledger.pruning));
    }
  }
  size_t width = 3;  // of the longest arm
  for (const ArmRun& run : runs) width = std::max(width, run.arm.size());
  table += fmt::format("\n{:<{}}{:>12}{:>10}{:>8}{:>14}{:>14}{:>12}{:>10}{:>10}\n", "arm", width,
                       "differs at", "KL", "top-1", "tokens read", "of", "bytes read", "TTFT",
                       "ms/token");
  for (const ArmRun& run : runs) {
    const AttentionAccount& read = run.result.ledger.decode.attention;
    table +=
        fmt::format("{:<{}}{:>12}{}{:>14}{:>14}{:>12}{:>10}{:>10.1f}\n", run.arm, width,
                    run.first_difference ? std::to_string(*run.first_difference) : "-",
                    FidelityCells(run), FormatCount(read.tokens_read),
                    FormatCount(read.tokens_resident), FormatBytes(read.bytes_read),
                    FormatSeconds(run.result.ttft_seconds), run.result.SecondsPerToken() * 1e3);
  }
  return table;
}

EvalSample MakeSample(const CompareFlags& flags, const Prompt& prompt, int64_t context_tokens) {
  EvalSample sample;
  sample.tokens = prompt.tokens;
  sample.spans = prompt.spans;
  const int64_t room = context_tokens - static_cast<int64_t>(prompt.tokens.size());
  sample.max_new_tokens = std::clamp<int64_t>(room, 1, flags.max_tokens);
  return sample;
}

int Run(const CompareFlags& flags, bool json) {
  const std::vector<std::string> arms = ReferenceFirst(flags.arms);
  const std::string question = ReadQuestion(flags.question);
  const DocumentSet set = ReadDocuments(flags.prompt);
  if (question.empty() && set.documents.empty()) {
    Throw(ErrorKind::kInput, "the prompt is empty: give a question with -p, documents with -f");
  }
  const LoadedModel loaded = LoadModel(flags.model, flags.arms, ReadChatTemplate(flags.prompt));
  const Prompt prompt = BuildPrompt(*loaded.tokenizer, set.documents, question,
                                    ToPromptOptions(flags.prompt, set.documents, arms));
  const EvalSample sample = MakeSample(flags, prompt, loaded.engine->context_tokens());

  std::vector<ArmRun> runs;  // what was finished
  bool complete = false;
  int signal = 0;
  {
    ProgressBar progress(!flags.quiet);
    const InterruptScope interrupts;
    complete = RunArms(loaded.engine.get(), sample, arms, {.fresh_prefill = true},
                       {.should_stop = [&] { return interrupts.Pending() != 0; },
                        .on_run = [&](const ArmRun& run) { runs.push_back(run); },
                        .on_prefill = [&](const PrefillProgress& p) { progress.Update(p); }})
                   .has_value();
    signal = interrupts.Pending();
  }
  if (!complete) Warn("stopped: what was finished is shown");
  Output output;
  if (json) {
    ordered_json list = ordered_json::array();
    for (const ArmRun& run : runs) list.push_back(ToJson(run));
    output.Write(DumpJson({{"schema", "winnow.compare/1"},
                           {"model", loaded.name},
                           {"chat_template", prompt.used_chat_template},
                           {"prompt_tokens", prompt.tokens.size()},
                           {"complete", complete},
                           {"arms", std::move(list)}},
                          /*indent=*/true) +
                 "\n");
  } else if (!runs.empty()) {
    output.Write(Table(runs));
  }
  int exit_code = 0;
  for (const ArmRun& run : runs) {
    if (run.result.finish_reason != FinishReason::kFailed) continue;
    exit_code = DescribeError(run.result.error_kind).exit_code;
    Warn(fmt::format("{}: {}", run.arm, run.error));
  }
  return output.ExitCode(complete ? exit_code : 128 + signal);
}

}  // namespace

void AddCompareCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command =
      app.add_subcommand("compare", "Answer one question under several arms, side by side");
  AddQuestionFlag(*command, flags->question);
  AddPromptFlags(*command, flags->prompt);
  AddModelFlags(*command, flags->model);
  AddAutoFlags(*command, flags->model);
  command->add_option("-n,--max-tokens", flags->max_tokens, "Longest answer in tokens")
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 30))
      ->capture_default_str()
      ->group("Comparison");
  command
      ->add_option("--arm", flags->arms,
                   "Arms to compare, repeatable; dense is the reference and always runs")
      ->type_name("ARM")
      ->expected(1)
      ->take_all()
      ->capture_default_str()
      ->group("Comparison");
  AddJsonFlag(*command, context);
  command->add_flag("-q,--quiet", flags->quiet, "No progress bar")->group("Output");
  command->footer(
      "Example: what does reading less change?\n"
      "  winnow compare -m model.gguf -f notes/ -p \"When does the contract end?\" \\\n"
      "      --arm select=sketch,residual=sketch");
  command->callback(
      [flags, &context] { context.run = [flags, &context] { return Run(*flags, context.json); }; });
}

}  // namespace winnow
