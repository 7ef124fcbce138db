#include "cli/calibrate_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/output.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cli/user_cache.h"
#include "core/error.h"
#include "model/model_hash.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

// An early layer saves most of what pruning can save, a late one at least a quarter of the layers.
constexpr double kEarlyShare = 0.37;
constexpr double kLateFirst = 0.5;
constexpr double kLateLast = 0.75;

PruneCalibrationOptions OptionsOf(const PrefillCalibration& calibration, int n_layers) {
  const auto layer = [n_layers](double share) {
    return std::clamp(static_cast<int>(share * n_layers), 1, n_layers - 1);
  };
  PruneCalibrationOptions options{.style = calibration.style, .keep = calibration.keep};
  options.first_layer = calibration.style == PruneStyle::kEarly ? 1 : layer(kLateFirst);
  options.last_layer = layer(calibration.style == PruneStyle::kEarly ? kEarlyShare : kLateLast);
  return options;
}

std::string Percent(int64_t part, int64_t whole) {
  return fmt::format(
      "{:.1f} %", whole == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string FiguresLines(const char* name, const PruneFigures& figures) {
  const ProposerFigures& method = figures.method();
  std::string lines = fmt::format(
      "{}: {} prompts, accepted {}, evidence kept {}, at layer {:.1f} on average; of {} random "
      "removals as large, the limits refuse {}\n",
      name, figures.prompts, Percent(method.accepted, figures.prompts),
      Percent(method.evidence_kept, figures.prompts), figures.mean_layer, figures.random_removals,
      Percent(figures.random_removals - figures.random_within, figures.random_removals));
  for (const auto& [task, of_task] : figures.tasks) {
    lines +=
        fmt::format("  {}: evidence kept {} of {}\n", task, of_task.evidence_kept, of_task.prompts);
  }
  return lines;
}

// Each order of removal under the same limits, and at equal saving without them.
std::string ProposerTable(const PruneFigures& figures) {
  std::string table = fmt::format("{:>14}{:>10}{:>10}{:>14}{:>14}\n", "test: order", "accepted",
                                  "evidence", "equal saving", "all heads");
  for (const auto& [name, of_proposer] : figures.proposers) {
    table += fmt::format("{:>14}{:>10}{:>10}{:>14}{:>14}\n", name, of_proposer.accepted,
                         of_proposer.evidence_kept, of_proposer.equal_saving_kept,
                         of_proposer.equal_saving_kept_all_heads);
  }
  return table;
}

// "3+7", "all"
std::string HeadsOf(const std::vector<double>& weights) {
  if (std::ranges::count(weights, 0.0) == 0) return "all";
  std::string text;
  for (size_t head = 0; head < weights.size(); ++head) {
    if (weights[head] > 0) text += fmt::format("{}{}", text.empty() ? "" : "+", head);
  }
  return text;
}

std::string Table(const PruneCalibration& found, const PruneFigures& test) {
  std::string table = fmt::format("{:>5}{:>11}{:>12}{:>8}{:>14}\n", "layer", "all heads",
                                  "best heads", "find", "have to keep");
  for (const LayerRecall& layer : found.layers) {
    table += fmt::format("{:>5}{:>11.3f}{:>12}{:>8.3f}{:>14.3f}\n", layer.layer, layer.pooled,
                         HeadsOf(layer.head_weights), layer.best, layer.best_needed);
  }
  table += "monitored:";
  for (const PruneProfileLayer& layer : found.profile.layers) {
    table += fmt::format(" {} (heads {})", layer.layer, HeadsOf(layer.head_weights));
  }
  return table + "\n" + FiguresLines("calibration", found.calibration) +
         FiguresLines("test", test) + ProposerTable(test);
}

}  // namespace

int CalibratePrefill(const LoadedModel& loaded, const PrefillCalibration& calibration, bool json) {
  if (calibration.calibrate.empty() || calibration.test.empty()) {
    Throw(ErrorKind::kInput,
          "there is nothing to look for: give a book with --text, or --prompts with at least two "
          "lines, one to calibrate on and one to test on, that name their evidence");
  }
  const int n_layers = loaded.backbone->config().n_layers;
  const PruneCalibrationOptions options = OptionsOf(calibration, n_layers);
  const ChangingLine line(!calibration.quiet);
  const auto n_all = calibration.calibrate.size() + calibration.test.size();
  int64_t n_before = 0;
  const InterruptScope interrupts;
  const ObserveHooks hooks{
      .should_stop = [&] { return interrupts.Pending() != 0; },
      .on_done =
          [&](int64_t done) {
            line.Show(fmt::format("read {} of {} prompts", n_before + done, n_all));
          }};
  const auto observe = [&](const std::vector<EvalSample>& samples) {
    auto prompts = ObservePrompts(loaded.engine.get(), samples, options.last_layer, hooks);
    n_before += std::ssize(samples);
    return prompts;
  };
  const auto prompts = observe(calibration.calibrate);
  const auto test_prompts = prompts ? observe(calibration.test) : std::nullopt;
  line.Show("");
  if (!test_prompts) {
    Warn("stopped: no profile was written");
    return 128 + interrupts.Pending();
  }
  PruneCalibration found = CalibratePruning(*prompts, n_layers, options);
  found.profile.model_hash = HashModelFile(loaded.path).Hex();
  const PruneFigures test = TestPruning(*test_prompts, found.profile);

  ordered_json profile = ToJson(found.profile);
  profile["calibration"] = {{"command", calibration.command},
                            {"calibration", ToJson(found.calibration)},
                            {"test", ToJson(test)}};
  if (!ReplaceFile(calibration.out, DumpJson(profile, /*indent=*/true) + "\n")) {
    Throw(ErrorKind::kResource, "the profile cannot be written to {}", calibration.out);
  }
  Output output;
  if (json) {
    ordered_json layers = ordered_json::array();
    for (const LayerRecall& layer : found.layers) {
      layers.push_back({{"layer", layer.layer},
                        {"pooled", layer.pooled},
                        {"head_weights", layer.head_weights},
                        {"best", layer.best},
                        {"best_needed", layer.best_needed}});
    }
    output.Write(DumpJson({{"schema", "winnow.calibrate_prefill/1"},
                           {"written", calibration.out},
                           {"profile", std::move(profile)},
                           {"layers", std::move(layers)}},
                          /*indent=*/true) +
                 "\n");
  } else {
    output.Write(Table(found, test));
  }
  return output.ExitCode(0);
}

}  // namespace winnow
