#include "eval/observed_prompt.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "policy/params.h"
#include "policy/prefill/proposer.h"
#include "policy/prefill/prune_params.h"

namespace winnow {
namespace {

// Nothing is removed, so the prefill stays dense; every layer is scored.
constexpr char kObserve[] = "prefill=entroprefill,uncalibrated=1,eps=0,v=0,must_pay=0";

std::vector<int32_t> EvidenceOf(const EvalSample& sample, const PruneProblem& problem) {
  std::vector<int32_t> chunks;
  for (const int64_t token : sample.evidence) {
    const int32_t chunk = problem.chunk_of[token];
    if (chunk >= 0) chunks.push_back(chunk);
  }
  return chunks;
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

bool ObservedPrompt::Keeps(std::span<const int32_t> removed) const {
  return std::ranges::none_of(
      evidence, [&](int32_t chunk) { return std::ranges::find(removed, chunk) != removed.end(); });
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

UnlimitedRemoval::UnlimitedRemoval(std::string_view proposer, double keep, uint64_t seed)
    : keep_(keep), seed_(seed) {
  Params params("prefill=" + std::string(proposer));
  proposer_ = MakeProposer(proposer, params);
  proposer_->Configure(score_);
}

int64_t UnlimitedRemoval::TargetSaving(const ObservedPrompt& prompt) const {
  return PruneParams{}.TargetSaving(prompt.problem.n_candidate_tokens(), keep_);
}

PruneCandidate UnlimitedRemoval::Propose(const ObservedPrompt& prompt,
                                         const ObservedPrompt::Layer& layer,
                                         std::span<const double> head_weights) const {
  const LayerObservation seen = prompt.Observation(layer);
  const std::vector<double> no_limit(prompt.problem.query_heads, 2.0);
  return ProposeRemoval(prompt.problem, seen.mean_attention, seen.chunk_mass, *proposer_,
                        {.score = score_,
                         .head_weights = head_weights,
                         .eps = no_limit,
                         .min_chunks = 1,
                         .target_saving = TargetSaving(prompt),
                         .seed = seed_});
}

}  // namespace winnow
