#include "cli/diagnose_prefill.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>

#include "cli/progress.h"
#include "cli/signals.h"
#include "core/error.h"
#include "eval/block_norms.h"
#include "eval/prune_bounds.h"
#include "eval/prune_report.h"
#include "model/gguf_file.h"

namespace winnow {
namespace {

constexpr int64_t kMaxChunks = 1 << 20;

int64_t ParseNumber(std::string_view text, std::string_view whole) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 ||
      number > kMaxChunks) {
    Throw(ErrorKind::kUsage, "--remove {}: chunks are named by number, from 1, as in 3,5-9", whole);
  }
  return number;
}

std::vector<int64_t> ParseChunks(const std::vector<std::string>& parts) {
  std::vector<int64_t> chunks;
  for (const std::string& part : parts) {
    const std::string_view text = part;
    const size_t dash = text.find('-');
    const int64_t first = ParseNumber(text.substr(0, dash), text);
    const int64_t last =
        dash == std::string_view::npos ? first : ParseNumber(text.substr(dash + 1), text);
    if (last < first) {
      Throw(ErrorKind::kUsage, "--remove {}: the range ends before it begins", part);
    }
    for (int64_t chunk = first; chunk <= last; ++chunk) chunks.push_back(chunk);
  }
  return chunks;
}

}  // namespace

void AddDiagnosePrefillFlags(CLI::App& command, DiagnosePrefillFlags& flags,
                             const std::vector<CLI::Option*>& others) {
  const std::string group = "Pruning in mid-prefill";
  CLI::Option* prefill =
      command
          .add_flag("--prefill", flags.enabled,
                    fmt::format("Diagnose the removal of chunks in mid-prefill instead; prompts of "
                                "at most {} tokens",
                                kMaxPruneDiagnosisTokens))
          ->group(group);
  for (CLI::Option* other : others) prefill->excludes(other);
  PruneDiagnosisOptions& options = flags.options;
  CLI::Option* remove =
      command
          .add_option("--remove", flags.remove,
                      "Chunks to remove, counted from 1 over all documents, such as 3,5-9")
          ->type_name("N,...")
          ->delimiter(',')
          ->needs(prefill)
          ->group(group);
  command
      .add_option("--keep", options.keep,
                  "Without --remove: the chunks that get the least attention a token go until this "
                  "share of the documents is left")
      ->type_name("X")
      ->check(RealBetween(0.0, 1.0))
      ->capture_default_str()
      ->needs(prefill)
      ->excludes(remove)
      ->group(group);
  command
      .add_option("--layer", options.layer,
                  "The last layer that sees all tokens, counted from 1 (default: a third)")
      ->type_name("N")
      ->check(Between(1, 1 << 20))
      ->needs(prefill)
      ->group(group);
  command
      .add_option("--observers", options.observers,
                  "So many of the last tokens after the documents measure their attention")
      ->type_name("N")
      ->check(Between(1, 1 << 20))
      ->capture_default_str()
      ->needs(prefill)
      ->group(group);
}

PruneDiagnosisOptions ToOptions(const DiagnosePrefillFlags& flags) {
  PruneDiagnosisOptions options = flags.options;
  options.remove = ParseChunks(flags.remove);
  options.Validate();
  return options;
}

std::optional<PrefillDiagnosis> DiagnosePrefill(const LoadedModel& loaded, const Prompt& prompt,
                                                const PruneDiagnosisOptions& options, bool quiet,
                                                int* signal) {
  const InterruptScope interrupts;
  const ChangingLine line(!quiet);
  const auto stopped = [&] {
    *signal = interrupts.Pending();
    return *signal != 0;
  };
  const std::optional<PruneDiagnosis> diagnosis =
      DiagnosePruning(loaded.backbone.get(), loaded.pool.get(), prompt, options,
                      {.should_stop = stopped, .on_layer = [&](int layer, int total) {
                         line.Show(fmt::format("layer {} of {}", layer, total));
                       }});
  if (!diagnosis.has_value()) return std::nullopt;
  const GgufFile file(loaded.path);
  const ModelNorms norms = ReadModelNorms(
      file, loaded.backbone->config(), diagnosis->layer, loaded.pool.get(), [&](int layer) {
        line.Show(fmt::format("norms of the weights of layer {}", layer + 1));
        return !stopped();
      });
  if (stopped()) return std::nullopt;
  const PruneBounds bounds = BoundPruning(*diagnosis, norms);
  return PrefillDiagnosis{ToJson(*diagnosis, bounds, norms, options),
                          PruneTable(*diagnosis, bounds, norms)};
}

}  // namespace winnow
