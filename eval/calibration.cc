#include "eval/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "policy/arm.h"

namespace winnow {
namespace {

// What is chosen on some prompts does worse on others: of the KL that is allowed, so much is used.
constexpr double kMargin = 0.7;
constexpr int64_t kPage = kDefaultPageSlots;  // budgets are read in whole pages

// An arm of the search by its parameters.
struct Shape {
  std::string select;  // with its parameters, but for the budget
  int64_t budget = 0;
  int dense_layers = 0;
  std::string residual;  // with its parameters; "": none

  std::string Arm() const {
    std::string arm =
        fmt::format("select={},budget={},dense_layers={}", select, budget, dense_layers);
    if (!residual.empty()) arm += ",residual=" + residual;
    return arm;
  }
  bool operator==(const Shape&) const = default;
};

// A family differs in its budget only, so that more is closer and dearer.
struct Ladder {
  Shape shape;
  std::vector<int64_t> budgets;  // ascending

  Shape At(size_t rung) const {
    Shape at = shape;
    at.budget = budgets[rung];
    return at;
  }
};

// Cheap ones first: what they achieve cuts the others short.
const std::vector<Ladder>& Ladders() {
  const std::vector<int64_t> dropping = {64, 128, 256, 512};
  const std::vector<int64_t> completing = {32, 64, 128, 256};
  static const std::vector<Ladder> kLadders = {
      {{"cascade,bits=4", 0, 2, ""}, dropping},
      {{"sketch,bits=2", 0, 2, ""}, dropping},
      {{"sketch,bits=4", 0, 2, ""}, dropping},
      {{"sketch,bits=4", 0, 2, "centroid"}, dropping},
      {{"sketch,bits=2", 0, 0, "sketch,bits=2"}, completing},
      {{"sketch,bits=4", 0, 0, "sketch,bits=2"}, completing},
      {{"sketch,bits=4", 0, 0, "sketch,bits=4"}, completing},
      {{"sketch,bits=4", 0, 2, "sketch,bits=4"}, completing},
      {{"sketch,bits=8", 0, 0, "sketch,bits=4"}, completing},
  };
  return kLadders;
}

double AttentionSeconds(const StageSeconds& seconds) {
  return seconds.score + seconds.select + seconds.attention + seconds.estimate + seconds.account;
}

class Search {
 public:
  Search(Engine* engine, const ModelConfig& config, const CalibrationOptions& options,
         const CalibrationHooks& hooks)
      : engine_(engine),
        config_(config),
        options_(options),
        hooks_(hooks),
        target_(options.target) {
    run_hooks_.should_stop = hooks.should_stop;
    target_.kl *= kMargin;
  }

  CalibrationResult Run();

 private:
  struct Stopped {};
  struct Prompt {
    const EvalSample* sample;
    DenseReference reference;
  };

  void Tell(const std::string& what) const {
    if (hooks_.on_work) hooks_.on_work(what);
  }
  // Runs dense on the samples. Throws Stopped.
  std::vector<Prompt> Read(const std::vector<EvalSample>& samples, const std::string& kind);
  // Whatever comes, the target is missed.
  bool Hopeless(const Fidelity& so_far, int64_t all_positions) const;
  Trial Try(const std::string& stage, const std::string& arm, std::span<const Prompt> prompts,
            bool to_the_end);
  // The same on the calibration prompts, remembered in the result; the best arm so far is kept.
  const Trial& Consider(const std::string& stage, const std::string& arm);
  // The arm's KL on the first prompt alone, which orders arms; nothing is remembered.
  double Probe(const std::string& stage, const std::string& arm);

  // From coarse to fine.
  void Choose();
  void SearchLadder(const Ladder& ladder);
  void SearchNeighbours();
  void SearchGates();
  // Of `gates`, as many of the least harmful ones as the target allows, on top of those that hold.
  void CloseGates(std::vector<CompletionGate> gates);
  std::string GatedArm(const std::vector<CompletionGate>& more) const;
  // What to write down where no arm met the target: to the end, the one that came closest.
  void TakeClosest();
  void Test();

  const Trial* Best() const { return best_ < 0 ? nullptr : &result_.tried[best_]; }

  Engine* engine_;
  const ModelConfig& config_;
  const CalibrationOptions& options_;
  const CalibrationHooks& hooks_;
  ArmRunHooks run_hooks_;
  FidelityTarget target_;  // of the search
  std::vector<Prompt> prompts_;
  std::optional<Shape> best_shape_;  // of the best trial, if a ladder or its neighbours had it
  int best_ = -1;                    // in result_.tried
  CalibrationResult result_;
};

std::vector<Search::Prompt> Search::Read(const std::vector<EvalSample>& samples,
                                         const std::string& kind) {
  std::vector<Prompt> prompts;
  for (const EvalSample& sample : samples) {
    Tell(fmt::format("reading {} prompt {} of {}", kind, prompts.size() + 1, samples.size()));
    std::optional<DenseReference> reference = RunReference(engine_, sample, run_hooks_);
    if (!reference.has_value()) throw Stopped{};
    prompts.push_back({&sample, *std::move(reference)});
  }
  // Those that say most come first: an arm that misses the target is soon given up.
  std::stable_sort(prompts.begin(), prompts.end(), [](const Prompt& a, const Prompt& b) {
    return a.reference.tokens.size() > b.reference.tokens.size();
  });
  return prompts;
}

bool Search::Hopeless(const Fidelity& so_far, int64_t all_positions) const {
  const auto n = static_cast<double>(all_positions);
  const auto missed = static_cast<double>(so_far.positions - so_far.same_top1);
  return so_far.kl / n > target_.kl || 1 - missed / n < LeastAgreement(target_, all_positions);
}

Trial Search::Try(const std::string& stage, const std::string& arm, std::span<const Prompt> prompts,
                  bool to_the_end) {
  int64_t all_positions = 0;
  for (const Prompt& prompt : prompts) all_positions += std::ssize(prompt.reference.tokens);
  Trial trial{.stage = stage, .arm = ParseArm(arm).resolved};
  Fidelity fidelity;
  PhaseLedger decode;
  for (const Prompt& prompt : prompts) {
    Tell(fmt::format("{}: {} on prompt {} of {}", stage, trial.arm, trial.figures.prompts + 1,
                     prompts.size()));
    const auto run = RunAlong(engine_, *prompt.sample, prompt.reference, trial.arm, run_hooks_);
    if (!run.has_value()) throw Stopped{};
    if (!run->fidelity.has_value()) Throw(ErrorKind::kInput, "{}: {}", trial.arm, run->error);
    fidelity += *run->fidelity;
    decode.attention += run->result.ledger.decode.attention;
    decode.seconds += run->result.ledger.decode.seconds;
    decode.tokens += run->result.ledger.decode.tokens;
    ++trial.figures.prompts;
    if (to_the_end || !Hopeless(fidelity, all_positions)) continue;
    trial.cut_short = trial.figures.prompts < std::ssize(prompts);
    break;
  }
  ProfileFigures& figures = trial.figures;
  // What was not run might have agreed: the figures of a trial that was cut short are bounds.
  const int64_t over = trial.cut_short ? all_positions : fidelity.positions;
  figures.positions = fidelity.positions;
  figures.kl = fidelity.kl / static_cast<double>(over);
  figures.top1_agreement =
      1 - static_cast<double>(fidelity.positions - fidelity.same_top1) / static_cast<double>(over);
  figures.perplexity_ratio = fidelity.PerplexityRatio();
  if (decode.attention.bytes_dense > 0) {
    figures.bytes_ratio = static_cast<double>(decode.attention.bytes_read) /
                          static_cast<double>(decode.attention.bytes_dense);
  }
  if (decode.tokens > 0) {
    trial.attention_ms =
        AttentionSeconds(decode.seconds) / static_cast<double>(decode.tokens) * 1e3;
  }
  trial.met = !trial.cut_short && figures.Meets(to_the_end ? options_.target : target_);
  return trial;
}

const Trial& Search::Consider(const std::string& stage, const std::string& arm) {
  const std::string resolved = ParseArm(arm).resolved;
  for (const Trial& known : result_.tried) {
    if (known.arm == resolved) return known;
  }
  result_.tried.push_back(Try(stage, arm, prompts_, /*to_the_end=*/false));
  const Trial& trial = result_.tried.back();
  if (hooks_.on_trial) hooks_.on_trial(trial);
  if (trial.met &&
      trial.figures.bytes_ratio < (Best() == nullptr ? 1 : Best()->figures.bytes_ratio)) {
    best_ = static_cast<int>(result_.tried.size()) - 1;
  }
  return trial;
}

double Search::Probe(const std::string& stage, const std::string& arm) {
  return Try(stage, arm, std::span(prompts_).first(1), /*to_the_end=*/true).figures.kl;
}

// The lowest rung that meets the target, by bisection; given up where a rung that misses it costs
// as much as what has met it already, for those above cost more.
void Search::SearchLadder(const Ladder& ladder) {
  size_t low = 0;
  size_t high = ladder.budgets.size();
  while (low < high) {
    const size_t rung = (low + high) / 2;
    const int best_before = best_;
    const Trial& trial = Consider("select", ladder.At(rung).Arm());
    if (best_ != best_before) best_shape_ = ladder.At(rung);
    if (trial.met) {
      high = rung;
    } else if (Best() != nullptr && trial.figures.bytes_ratio >= Best()->figures.bytes_ratio) {
      return;
    } else {
      low = rung + 1;
    }
  }
}

// Trades dense layers against the budget, one step at a time, as long as it gets cheaper.
void Search::SearchNeighbours() {
  for (bool improved = true; improved && best_shape_.has_value();) {
    improved = false;
    const Shape from = *best_shape_;
    std::vector<Shape> neighbours;
    if (from.dense_layers > 0) {
      neighbours.push_back(from);
      --neighbours.back().dense_layers;
    }
    for (const int more_layers : {0, 1, 2}) {
      if (from.budget <= kPage) break;
      neighbours.push_back(from);
      neighbours.back().budget -= std::max(kPage, from.budget / 4 / kPage * kPage);
      neighbours.back().dense_layers += more_layers;
    }
    for (const Shape& shape : neighbours) {
      if (shape.dense_layers > config_.n_layers) continue;
      const int best_before = best_;
      Consider("layers", shape.Arm());
      if (best_ == best_before) continue;
      best_shape_ = shape;
      improved = true;
    }
  }
}

std::string Search::GatedArm(const std::vector<CompletionGate>& more) const {
  ModelProfile profile;
  profile.arm = result_.arm;
  profile.completion_off = result_.completion_off;
  profile.completion_off.insert(profile.completion_off.end(), more.begin(), more.end());
  std::sort(profile.completion_off.begin(), profile.completion_off.end());
  return profile.FullArm();
}

void Search::CloseGates(std::vector<CompletionGate> gates) {
  // Final KL with this one closed: the order in which they are closed. One prompt is enough for an
  // order; what is closed is judged by all of them.
  std::vector<std::pair<double, CompletionGate>> order;
  order.reserve(gates.size());
  for (const CompletionGate& gate : gates)
    order.emplace_back(Probe("gates", GatedArm({gate})), gate);
  std::sort(order.begin(), order.end());
  gates.clear();
  for (const auto& [kl, gate] : order) gates.push_back(gate);
  // The harms add up roughly, so how many may be closed is found by bisection.
  size_t low = 0;
  size_t high = gates.size();
  while (low < high) {
    const size_t n = (low + high + 1) / 2;
    if (Consider("gates", GatedArm({gates.begin(), gates.begin() + static_cast<int64_t>(n)})).met) {
      low = n;
    } else {
      high = n - 1;
    }
  }
  result_.completion_off.insert(result_.completion_off.end(), gates.begin(),
                                gates.begin() + static_cast<int64_t>(low));
  std::sort(result_.completion_off.begin(), result_.completion_off.end());
}

void Search::SearchGates() {
  const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(result_.arm);
  if (options_.gates == GateSearch::kNone || policy == nullptr || policy->residual == nullptr) {
    return;
  }
  std::vector<CompletionGate> gates;
  for (int layer = policy->rule.dense_layers; layer < config_.n_layers; ++layer) {
    if (config_.layers[layer].window == 0) gates.push_back({layer, -1});
  }
  CloseGates(gates);
  if (options_.gates != GateSearch::kHeads) return;
  const CompletionGates closed(result_.completion_off);
  std::vector<CompletionGate> heads;
  for (const CompletionGate& gate : gates) {
    for (int head = 0; head < config_.kv_heads; ++head) {
      if (closed.Completes(gate.layer, head)) heads.push_back({gate.layer, head});
    }
  }
  CloseGates(heads);
}

void Search::Test() {
  const std::vector<Prompt> prompts = Read(options_.test, "test");
  const Trial trial = Try("test", GatedArm({}), prompts, /*to_the_end=*/true);
  result_.test = trial.figures;
  result_.tried.push_back(trial);
  if (hooks_.on_trial) hooks_.on_trial(trial);
}

void Search::TakeClosest() {
  // Those that were given up later, and of these those with the smaller KL for what they ran.
  const auto closest = std::min_element(result_.tried.begin(), result_.tried.end(),
                                        [](const Trial& a, const Trial& b) {
                                          return std::tuple(-a.figures.prompts, a.figures.kl) <
                                                 std::tuple(-b.figures.prompts, b.figures.kl);
                                        });
  Trial trial = *closest;
  if (trial.cut_short) {
    trial = Try("closest", trial.arm, prompts_, /*to_the_end=*/true);
    trial.met = false;
    result_.tried.push_back(trial);
    if (hooks_.on_trial) hooks_.on_trial(trial);
  }
  result_.arm = trial.arm;
  result_.calibration = trial.figures;
}

void Search::Choose() {
  prompts_ = Read(options_.calibrate, "calibration");
  PhaseLedger dense;
  for (const Prompt& prompt : prompts_) {
    dense.seconds += prompt.reference.result.ledger.decode.seconds;
    dense.tokens += prompt.reference.result.ledger.decode.tokens;
  }
  if (dense.tokens > 0) {
    result_.dense_attention_ms =
        AttentionSeconds(dense.seconds) / static_cast<double>(dense.tokens) * 1e3;
  }
  for (const std::string& arm : options_.arms) Consider("given", arm);
  if (options_.arms.empty()) {
    for (const Ladder& ladder : Ladders()) SearchLadder(ladder);
    SearchNeighbours();
  }
  if (Best() == nullptr) {
    TakeClosest();
  } else {
    result_.arm = Best()->arm;
    SearchGates();
  }
}

CalibrationResult Search::Run() {
  try {
    Choose();
    result_.complete = true;
  } catch (const Stopped&) {
    // What was found is worth its test.
    run_hooks_.should_stop = nullptr;
  }
  if (const Trial* best = Best(); best != nullptr) {
    result_.met = true;
    if (result_.arm == "dense") result_.arm = best->arm;
    result_.calibration = Consider("gates", GatedArm({})).figures;
  }
  if (result_.arm != "dense") {
    try {
      Test();
    } catch (const Stopped&) {
      result_.complete = false;
    }
  }
  return std::move(result_);
}

}  // namespace

std::vector<std::string> CalibrationArms(const std::vector<std::string>& arms, int n_layers) {
  if (!arms.empty()) return arms;
  std::vector<std::string> all;
  for (const Ladder& ladder : Ladders()) {
    // Planes hang on the policies, not on budgets.
    if (ladder.shape.dense_layers < n_layers) all.push_back(ladder.At(0).Arm());
  }
  return all;
}

CalibrationResult Calibrate(Engine* engine, const ModelConfig& config,
                            const CalibrationOptions& options, const CalibrationHooks& hooks) {
  WINNOW_CHECK(!options.calibrate.empty() && !options.test.empty());
  return Search(engine, config, options, hooks).Run();
}

nlohmann::ordered_json ToJson(const Trial& trial) {
  const ProfileFigures& figures = trial.figures;
  return {{"stage", trial.stage},
          {"arm", trial.arm},
          {"met", trial.met},
          {"cut_short", trial.cut_short},
          {"prompts", figures.prompts},
          {"positions", figures.positions},
          {"kl", figures.kl},
          {"top1_agreement", figures.top1_agreement},
          {"perplexity_ratio", figures.perplexity_ratio},
          {"bytes_ratio", figures.bytes_ratio},
          {"attention_ms", trial.attention_ms}};
}

std::string CalibrationTable(const CalibrationResult& result) {
  std::string table = fmt::format("{:<8}{:>8}{:>10}{:>9}{:>8}{:>8}{:>8}  {}\n", "stage", "bytes",
                                  "KL", "top-1", "ppl", "ms", "target", "arm");
  table += fmt::format("{:<8}{:>8}{:>10}{:>9}{:>8}{:>8.2f}{:>8}  dense\n", "", "1.000", "0", "1",
                       "1", result.dense_attention_ms, "");
  for (const Trial& trial : result.tried) {
    const ProfileFigures& figures = trial.figures;
    const char* bound = trial.cut_short ? ">" : "";
    table += fmt::format(
        "{:<8}{:>8.3f}{:>10}{:>9}{:>8.3f}{:>8.2f}{:>8}  {}\n", trial.stage, figures.bytes_ratio,
        fmt::format("{}{:.2g}", bound, figures.kl),
        fmt::format("{}{:.3f}", trial.cut_short ? "<" : "", figures.top1_agreement),
        figures.perplexity_ratio, trial.attention_ms, trial.met ? "met" : "missed", trial.arm);
  }
  return table;
}

}  // namespace winnow
