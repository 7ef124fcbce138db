#include "eval/prune_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "policy/arm.h"
#include "policy/prefill/candidate.h"

namespace winnow {
namespace {

// Nothing is removed, so the prefill stays dense; every layer is scored.
constexpr char kObserve[] = "prefill=entroprefill,uncalibrated=1,eps=0,v=0";

// Heads that are pooled at most, unless all are: more dilute what the best one knows.
constexpr size_t kMostHeads = 3;
// Layers that a late profile monitors at most, and how much worse than the best one they may be.
constexpr size_t kMostLayers = 4;
constexpr double kRecallSlack = 0.02;
// Room above what calibration prompts lost, for prompts that are not among them.
constexpr double kToleranceFactor = 1.15;
constexpr double kToleranceRoom = 0.02;
constexpr double kMostTolerance = 0.999;
// An audit must be able to fail after the scan: its tolerance, on means, lies below.
constexpr double kAuditShare = 0.98;

std::vector<int32_t> EvidenceOf(const EvalSample& sample, const PruneProblem& problem) {
  std::vector<int32_t> chunks;
  for (const int64_t token : sample.evidence) {
    const int32_t chunk = problem.chunk_of[token];
    if (chunk >= 0) chunks.push_back(chunk);
  }
  return chunks;
}

bool Keeps(const ObservedPrompt& prompt, const std::vector<int32_t>& removed) {
  return std::ranges::none_of(prompt.evidence, [&](int32_t chunk) {
    return std::ranges::find(removed, chunk) != removed.end();
  });
}

// What a layer would drop without limits, with these weights of its heads.
class Dropper {
 public:
  explicit Dropper(double keep) : keep_(keep) {
    Params params("prefill=entroprefill");
    proposer_ = MakeProposer("entroprefill", params);
    proposer_->Configure(score_);
  }

  PruneCandidate Propose(const ObservedPrompt& prompt, const ObservedPrompt::Layer& layer,
                         const std::vector<double>& weights) const {
    const LayerObservation seen = prompt.Observation(layer);
    const std::vector<double> no_limit(prompt.problem.query_heads, 2.0);
    return ProposeRemoval(
        prompt.problem, seen.mean_attention, seen.chunk_mass, *proposer_,
        {.score = score_,
         .head_weights = weights,
         .eps = no_limit,
         .min_chunks = 1,
         .target_saving = PruneParams{}.TargetSaving(prompt.problem.n_candidate_tokens(), keep_)});
  }

 private:
  double keep_;
  ScoreParams score_;
  std::unique_ptr<Proposer> proposer_;
};

// The share of the candidates' tokens that has to be kept so that the evidence is among them.
double NeededShare(const ObservedPrompt& prompt, const PruneCandidate& candidate) {
  if (candidate.invalid) return 1;
  int64_t before = 0;
  int64_t all = 0;
  bool found = false;
  for (const int32_t chunk : candidate.scan.order) {
    found |= std::ranges::find(prompt.evidence, chunk) != prompt.evidence.end();
    if (!found) before += prompt.problem.chunk_tokens[chunk];
    all += prompt.problem.chunk_tokens[chunk];
  }
  return 1 - static_cast<double>(before) / static_cast<double>(all);
}

struct Quality {
  double recall = 0;
  double needed = 1;  // mean share
  bool operator>(const Quality& other) const {
    return recall != other.recall ? recall > other.recall : needed < other.needed;
  }
};

Quality Judge(const std::vector<ObservedPrompt>& prompts, size_t layer,
              const std::vector<double>& weights, const Dropper& dropper) {
  Quality quality{.needed = 0};
  for (const ObservedPrompt& prompt : prompts) {
    const PruneCandidate candidate = dropper.Propose(prompt, prompt.layers[layer], weights);
    const bool finds = !candidate.invalid && Keeps(prompt, candidate.scan.removed);
    quality.recall += finds ? 1 : 0;
    quality.needed += NeededShare(prompt, candidate);
  }
  const auto n = static_cast<double>(prompts.size());
  return {quality.recall / n, quality.needed / n};
}

struct Monitored {
  size_t index = 0;  // into ObservedPrompt::layers
  std::vector<double> weights;
  Quality quality;
  double pooled_recall = 0;  // of all heads alike
};

// The heads of one layer that find most together: all of them alike, as in the paper, or the best
// one and then others that improve on it.
Monitored BestHeads(const std::vector<ObservedPrompt>& prompts, size_t layer,
                    const Dropper& dropper) {
  const int n_heads = prompts.front().problem.query_heads;
  Monitored best{layer, std::vector<double>(n_heads, 1.0)};
  best.quality = Judge(prompts, layer, best.weights, dropper);
  best.pooled_recall = best.quality.recall;
  std::vector<double> pool(n_heads, 0.0);
  Quality pool_quality{-1, 2};
  for (size_t n = 0; n < kMostHeads; ++n) {
    std::optional<std::vector<double>> better;
    for (int head = 0; head < n_heads; ++head) {
      if (pool[head] > 0) continue;
      std::vector<double> weights = pool;
      weights[head] = 1;
      const Quality quality = Judge(prompts, layer, weights, dropper);
      if (!(quality > pool_quality)) continue;
      pool_quality = quality;
      better = std::move(weights);
    }
    if (!better.has_value()) break;
    pool = *std::move(better);
  }
  if (pool_quality > best.quality) best = {layer, pool, pool_quality, best.pooled_recall};
  return best;
}

// An early profile takes the one layer that finds most; a late one those that find nearly as much,
// the earliest first.
std::vector<Monitored> ChooseLayers(std::vector<Monitored> layers, PruneStyle style) {
  const auto best = std::max_element(
      layers.begin(), layers.end(),
      [](const Monitored& a, const Monitored& b) { return b.quality > a.quality; });
  if (style == PruneStyle::kEarly) return {*best};
  const double least = best->quality.recall - kRecallSlack;
  std::erase_if(layers, [least](const Monitored& layer) { return layer.quality.recall < least; });
  if (layers.size() > kMostLayers) layers.resize(kMostLayers);
  return layers;
}

// What each head's rows, and their means, lost at most where the evidence stayed, with room for
// other prompts: a removal that costs more is likelier to be one that loses it.
PruneProfileLayer WithTolerances(const std::vector<ObservedPrompt>& prompts,
                                 const Monitored& monitored, const Dropper& dropper) {
  const int n_heads = prompts.front().problem.query_heads;
  PruneProfileLayer layer{.layer = prompts.front().layers[monitored.index].number,
                          .head_weights = monitored.weights};
  std::vector<double> worst_row(n_heads);
  std::vector<double> worst_mean(n_heads);
  for (const ObservedPrompt& prompt : prompts) {
    const ObservedPrompt::Layer& seen = prompt.layers[monitored.index];
    const PruneCandidate candidate = dropper.Propose(prompt, seen, monitored.weights);
    if (candidate.invalid || !Keeps(prompt, candidate.scan.removed)) continue;
    const int64_t n_rows = prompt.problem.n_observers();
    const int64_t k = prompt.problem.n_chunks();
    for (int head = 0; head < n_heads; ++head) {
      double mean = 0;
      for (int64_t u = 0; u < n_rows; ++u) {
        const double* row = seen.chunk_mass.data() + (head * n_rows + u) * k;
        double lost = 0;
        for (const int32_t chunk : candidate.scan.removed) lost += row[chunk];
        mean += lost / static_cast<double>(n_rows);
        if (u >= prompt.problem.first_proposal) worst_row[head] = std::max(worst_row[head], lost);
      }
      worst_mean[head] = std::max(worst_mean[head], mean);
    }
  }
  for (int head = 0; head < n_heads; ++head) {
    const double eps =
        std::min(kMostTolerance, worst_row[head] * kToleranceFactor + kToleranceRoom);
    layer.eps.push_back(eps);
    layer.eps_audit.push_back(
        std::min(kAuditShare * eps, worst_mean[head] * kToleranceFactor + kToleranceRoom));
  }
  return layer;
}

// Feeds a run with what was observed; the chunks that it removes, if it accepts a layer.
std::optional<std::vector<int32_t>> Replay(const ObservedPrompt& prompt,
                                           const PrefillPolicy& policy, const PruneProfile& profile,
                                           int* accepted_layer) {
  const std::unique_ptr<PruneRun> run = policy.NewRun(prompt.problem, profile);
  for (const ObservedPrompt::Layer& layer : prompt.layers) {
    const std::vector<int>& monitored = run->MonitoredLayers();
    if (std::ranges::find(monitored, layer.number) == monitored.end()) continue;
    PruneDecision decision = run->Observe(layer.number, prompt.Observation(layer));
    if (!decision.accept) continue;
    *accepted_layer = layer.number;
    return std::move(decision.removed);
  }
  return std::nullopt;
}

ObservedPrompt Observe(Engine* engine, const EvalSample& sample, int last_layer,
                       const ObserveHooks& hooks, bool* stopped) {
  ObservedPrompt observed{.task = sample.task};
  Request request;
  request.tokens = sample.tokens;
  request.spans = sample.spans;
  request.arm = kObserve;
  request.max_new_tokens = 1;
  bool seen = false;
  request.on_observation = [&](int layer, const PruneProblem& problem,
                               const LayerObservation& observation) {
    if (layer > last_layer) {
      seen = true;
      return;
    }
    observed.problem = problem;
    const auto attention = observation.mean_attention.span();
    const auto mass = observation.chunk_mass.span();
    observed.layers.push_back(
        {layer, {attention.begin(), attention.end()}, {mass.begin(), mass.end()}});
    seen = layer == last_layer;
  };
  engine->ClearPrefixes();
  const RequestId id = engine->Submit(std::move(request));
  while (true) {
    if (const std::optional<RequestResult> result = engine->TakeResult(id)) {
      if (result->finish_reason == FinishReason::kFailed) {
        Throw(ErrorKind::kInput, "a prompt could not be read: {}", result->error);
      }
      break;
    }
    *stopped = hooks.should_stop && hooks.should_stop();
    if (seen || *stopped) engine->Cancel(id);
    engine->Step();
  }
  return observed;
}

}  // namespace

LayerObservation ObservedPrompt::Observation(const Layer& layer) const {
  return {
      .mean_attention = {layer.mean_attention.data(), {problem.query_heads, problem.n_tokens()}},
      .chunk_mass = {layer.chunk_mass.data(),
                     {problem.query_heads * problem.n_observers(), problem.n_chunks()}}};
}

std::optional<std::vector<ObservedPrompt>> ObservePrompts(Engine* engine,
                                                          const std::vector<EvalSample>& samples,
                                                          int last_layer,
                                                          const ObserveHooks& hooks) {
  std::vector<ObservedPrompt> prompts;
  for (const EvalSample& sample : samples) {
    bool stopped = false;
    ObservedPrompt prompt = Observe(engine, sample, last_layer, hooks, &stopped);
    if (stopped) return std::nullopt;
    if (!prompt.layers.empty()) prompt.evidence = EvidenceOf(sample, prompt.problem);
    if (prompt.evidence.empty()) {
      Throw(ErrorKind::kInput,
            "prompt {} of the task {} has no evidence among its documents' chunks: there is "
            "nothing to look for (the column 'evidence')",
            sample.index, sample.task);
    }
    prompts.push_back(std::move(prompt));
    if (hooks.on_done) hooks.on_done(std::ssize(prompts));
  }
  return prompts;
}

PruneCalibration CalibratePruning(const std::vector<ObservedPrompt>& prompts, int n_layers,
                                  const PruneCalibrationOptions& options) {
  WINNOW_CHECK(!prompts.empty());
  const Dropper dropper(options.keep);
  const PruneProblem& problem = prompts.front().problem;
  PruneCalibration result;
  std::vector<Monitored> layers;
  for (size_t i = 0; i < prompts.front().layers.size(); ++i) {
    const int number = prompts.front().layers[i].number;
    if (number < options.first_layer || number > options.last_layer) continue;
    layers.push_back(BestHeads(prompts, i, dropper));
    result.layers.push_back({.layer = number,
                             .pooled = layers.back().pooled_recall,
                             .head_weights = layers.back().weights,
                             .best = layers.back().quality.recall,
                             .best_needed = layers.back().quality.needed});
  }
  if (layers.empty()) {
    Throw(ErrorKind::kInput, "no layer from {} to {} can be monitored", options.first_layer,
          options.last_layer);
  }
  const std::vector<Monitored> monitored = ChooseLayers(std::move(layers), options.style);
  result.profile = {.name = options.style == PruneStyle::kEarly ? "early" : "late",
                    .n_layers = n_layers,
                    .query_heads = problem.query_heads,
                    .kv_heads = problem.kv_heads,
                    .keep = options.keep,
                    .min_streak = monitored.size() > 1 ? 1 : 0};
  for (const Monitored& layer : monitored) {
    result.profile.layers.push_back(WithTolerances(prompts, layer, dropper));
  }
  result.calibration = TestPruning(prompts, result.profile);
  return result;
}

PruneFigures TestPruning(const std::vector<ObservedPrompt>& prompts, const PruneProfile& profile) {
  const std::unique_ptr<PrefillPolicy> policy = MakePrefillPolicy("prefill=entroprefill");
  PruneFigures figures;
  double layers = 0;
  for (const ObservedPrompt& prompt : prompts) {
    ++figures.prompts;
    int layer = 0;
    const std::optional<std::vector<int32_t>> removed = Replay(prompt, *policy, profile, &layer);
    const bool kept = !removed.has_value() || Keeps(prompt, *removed);
    figures.accepted += removed.has_value() ? 1 : 0;
    figures.evidence_kept += kept ? 1 : 0;
    ++figures.tasks[prompt.task].prompts;
    figures.tasks[prompt.task].evidence_kept += kept ? 1 : 0;
    figures.accepted_evidence_kept += removed.has_value() && kept ? 1 : 0;
    if (removed.has_value()) layers += layer;
    const std::unique_ptr<PrefillPolicy> random =
        MakePrefillPolicy(fmt::format("prefill=random,seed={}", figures.prompts));
    figures.random_accepted += Replay(prompt, *random, profile, &layer).has_value() ? 1 : 0;
  }
  if (figures.accepted > 0) figures.mean_layer = layers / static_cast<double>(figures.accepted);
  return figures;
}

nlohmann::ordered_json ToJson(const PruneFigures& figures) {
  nlohmann::ordered_json tasks = nlohmann::ordered_json::object();
  for (const auto& [name, task] : figures.tasks) {
    tasks[name] = {{"prompts", task.prompts}, {"evidence_kept", task.evidence_kept}};
  }
  return {{"prompts", figures.prompts},
          {"accepted", figures.accepted},
          {"evidence_kept", figures.evidence_kept},
          {"accepted_evidence_kept", figures.accepted_evidence_kept},
          {"random_accepted", figures.random_accepted},
          {"mean_layer", figures.mean_layer},
          {"tasks", std::move(tasks)}};
}

}  // namespace winnow
