#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/engine_impl.h"
#include "ops/observer_rows.h"
#include "ops/page_planes.h"
#include "policy/arm.h"
#include "policy/prefill/chunks.h"
#include "policy/prefill/constraint_row.h"

namespace winnow {
namespace {

// Of the documents' chunks those that may be dropped: none that protection touches, which is of the
// sinks, of pinned chunks, and of tokens that every layer has adopted already.
ProtectedChunks Candidates(const std::vector<Span>& spans, int64_t n_prompt, int64_t n_sinks,
                           int64_t n_reused) {
  std::vector<int32_t> chunk_of(n_prompt, -1);
  std::vector<uint8_t> is_protected(n_prompt, 0);
  std::fill_n(is_protected.begin(), std::max(n_sinks, n_reused), 1);
  int32_t n_chunks = 0;
  for (const Span& span : spans) {
    if (span.kind != SpanKind::kChunk) continue;
    std::fill(chunk_of.begin() + span.begin, chunk_of.begin() + span.end, n_chunks++);
    if (span.pinned) is_protected[span.begin] = 1;
  }
  return ProtectChunks(chunk_of, is_protected);
}

// Everything after the last document: the question, and where the template has the assistant speak.
std::vector<int64_t> Observers(const std::vector<Span>& spans, int64_t n_prompt) {
  int64_t first = n_prompt;
  for (const Span& span : spans) {
    if (span.kind == SpanKind::kChunk) first = span.end;
  }
  std::vector<int64_t> observers(n_prompt - first);
  std::iota(observers.begin(), observers.end(), first);
  return observers;
}

}  // namespace

EnginePruner* Engine::Impl::PrunerOf(const Arm& arm) {
  if (arm.prefill_fingerprint == 0) return nullptr;
  if (const auto known = pruners.find(arm.resolved); known != pruners.end()) return &known->second;
  std::unique_ptr<PrefillPolicy> policy = MakePrefillPolicy(arm.text);
  PruneModel model{
      .n_layers = config.n_layers, .query_heads = config.query_heads, .kv_heads = config.kv_heads};
  if (!options.model_path.empty()) model.hash = ModelHash().Hex();
  for (int layer = 0; layer < config.n_layers; ++layer) {
    if (config.layers[layer].window == 0) model.global_layers.push_back(layer + 1);
  }
  PruneProfile profile = FindPruneProfile(policy->params, model, BuiltInPruneProfiles());
  return &pruners.emplace(arm.resolved, EnginePruner{std::move(policy), std::move(profile)})
              .first->second;
}

// Nothing of the prompt has been computed yet; its first n_reused tokens are resident.
void Engine::Impl::StartPruning(Sequence* sequence) {
  Sequence& s = *sequence;
  const PruneParams& params = s.pruner->policy->params;
  PruneProblem problem{.query_heads = config.query_heads, .kv_heads = config.kv_heads};
  problem.n_sinks = std::min(params.sinks, s.n_prompt());
  ProtectedChunks chunks = Candidates(s.request.spans, s.n_prompt(), problem.n_sinks, s.n_reused);
  problem.chunk_of = std::move(chunks.chunk_of);
  problem.chunk_tokens = std::move(chunks.chunk_tokens);
  problem.observers = Observers(s.request.spans, s.n_prompt());
  std::erase_if(problem.observers, [&](int64_t token) { return token < s.n_reused; });
  problem.first_proposal = std::max<int64_t>(0, problem.n_observers() - params.observers);
  s.pruning = std::make_unique<SequencePruning>(
      s.pruner->policy->NewRun(std::move(problem), s.pruner->profile,
                               {.keep_tables = s.request.keep_tables}),
      config.query_heads, config.head_dim);
  if (s.request.keep_all) {
    s.pruning->run->Bypass(PruneOutcome::kZeroTarget, "the request keeps everything");
  }
}

void Engine::Impl::Resume(Sequence* sequence) {
  Sequence& s = *sequence;
  // The last token is always computed, and where layers are scored all that observe.
  int64_t limit = s.n_prompt() - 1;
  if (s.pruning != nullptr && !s.pruning->run->MonitoredLayers().empty()) {
    limit = std::min(limit, s.pruning->queries.tokens().front());
  }
  const ParkedPrompts::Match match = parked.Find(s.request.tokens, s.n_reused, limit);
  if (match.prompt == nullptr) return;
  const ParkedPrompt& prompt = *match.prompt;
  for (int layer = 0; layer < prompt.n_layers; ++layer) {
    s.kv.Truncate(layer, 0);
    s.kv.AdoptPages(layer, prompt.kv.pages(layer).first(match.n_tokens / layout.slots));
  }
  std::copy_n(prompt.hidden.data() + (s.n_reused - prompt.first_row) * config.hidden,
              (match.n_tokens - s.n_reused) * config.hidden, s.hidden.data());
  s.resume_layer = prompt.n_layers;
  s.n_resumed = match.n_tokens;
}

void Engine::Impl::ForeseeCosts(Sequence* sequence) {
  Sequence& s = *sequence;
  if (!KnowsCosts(s)) return;
  SequencePruning& pruning = *s.pruning;
  const PruneProblem& problem = pruning.run->problem();
  const PrefillAccount& account = pruning.run->record();
  const PruneParams& params = s.pruner->policy->params;
  const int64_t hidden_bytes = parked.BytesOf(1);
  const int64_t n_rows = s.n_prompt() - s.n_reused;
  PrefillWork& work = pruning.work;
  work = {.tokens = s.n_prompt(),
          .reused = s.n_reused,
          .resumed_layers = s.resume_layer,
          .resumed = s.n_resumed,
          .observers = problem.n_observers(),
          .monitored = account.monitored_layers,
          .min_streak = account.min_streak,
          .target_kept = s.n_prompt() - account.target_saving,
          .hidden_bytes = static_cast<double>(hidden_bytes)};
  for (const LayerConfig& layer : config.layers) work.windows.push_back(layer.window);
  if (params.drop_kv) {
    work.kv_bytes = static_cast<double>(layout.TokenBytes(1));
  } else if (parked.Fits(n_rows)) {
    work.parked_bytes = static_cast<double>(n_rows * hidden_bytes);
  }
  if (work.monitored.empty()) return;
  const std::optional<PruneForecast> forecast = ForeseePruning(options.prefill_costs, work);
  if (!forecast.has_value()) return;
  pruning.record.cost.forecast = forecast;
  // Fewer keys may pay in decode or in the transfer, which the forecast knows nothing of.
  const bool pays_elsewhere = params.drop_kv || !s.request.save_kv.empty();
  if (!forecast->pays() && params.must_pay && !pays_elsewhere) {
    pruning.run->Bypass(PruneOutcome::kDoesNotPay, WhyItDoesNotPay(*forecast));
  }
}

// The first token is out. What comes after it, such as dual=lp, is not part of the comparison.
void Engine::Impl::CompareCosts(Sequence* sequence) {
  Sequence& s = *sequence;
  PruneCostAccount& cost = s.pruning->record.cost;
  cost.measured.auxiliary = s.ledger.prefill.seconds.prune;
  if (!KnowsCosts(s)) return;
  const PrefillCosts& costs = options.prefill_costs;
  const PrefillCourse course{.layers_scored = std::ssize(s.pruning->run->record().layers),
                             .applied_layer = s.pruning->record.applied_layer,
                             .kept = s.status.n_prompt};
  const PrefillWork& work = s.pruning->work;
  cost.predicted = Foresee(costs, work, course);
  if (const std::optional<IdealSaving> ideal = ForeseeIdealSaving(costs, work, course)) {
    cost.ideal_share = ideal->share;
    cost.ideal_low = ideal->low;
    cost.ideal_high = ideal->high;
  }
}

// The layer's rows are all computed.
void Engine::Impl::FinishLayer(Sequence* sequence) {
  Sequence& s = *sequence;
  SequencePruning& pruning = *s.pruning;
  ScopedTimer timer(s.ledger.prefill.seconds.prune);
  if (pruning.Monitors(s.status.layer + 1)) ObserveLayer(sequence);
  // Hidden states of tokens that were parked exist only above the layers that were resumed.
  if (!pruning.decision.removed.empty() && s.rows.empty() && s.status.layer + 1 >= s.resume_layer) {
    Remove(sequence);
  }
}

void Engine::Impl::ObserveLayer(Sequence* sequence) {
  Sequence& s = *sequence;
  SequencePruning& pruning = *s.pruning;
  const PruneProblem& problem = pruning.run->problem();
  const std::vector<int64_t> begin(problem.n_observers(), 0);
  std::vector<int64_t> end;
  for (const int64_t token : problem.observers) end.push_back(token + 1);
  const ObserverRowsParams params{.q = pruning.queries.queries(),
                                  .kv = s.kv.View(s.status.layer),
                                  .begin = begin,
                                  .end = end,
                                  .scale = config.attention_scale,
                                  .chunk_of = problem.chunk_of,
                                  .n_chunks = problem.n_chunks(),
                                  .first_proposal = problem.first_proposal};
  const int64_t n_rows = config.query_heads * problem.n_observers();
  mean_attention.Resize(config.query_heads * problem.n_tokens());
  chunk_mass.Resize(n_rows * problem.n_chunks());
  const ObserverRows rows{
      .mean_attention = {mean_attention.data(), {config.query_heads, problem.n_tokens()}},
      .chunk_mass = {chunk_mass.data(), {n_rows, problem.n_chunks()}}};
  ReadObserverRows(*threads, params, rows, observer_workspace);
  const LayerObservation observation{rows.mean_attention, rows.chunk_mass};
  if (s.request.on_observation) {
    s.request.on_observation(s.status.layer + 1, problem, observation);
  }
  pruning.decision = pruning.run->Observe(s.status.layer + 1, observation);
  pruning.queries.NextLayer();
  if (pruning.decision.removed.empty()) return;

  output_norms.Resize(2 * n_rows);
  const ObserverOutputs outputs{
      .norm = {output_norms.data(), {config.query_heads, problem.n_observers()}},
      .change = {output_norms.data() + n_rows, {config.query_heads, problem.n_observers()}}};
  MeasureRemoval(*threads, params, RemovalFlags(pruning.decision.removed, problem.n_chunks()),
                 outputs);
  const auto mean = [&](const double* row) {
    return std::accumulate(row, row + problem.n_observers(), 0.0) /
           static_cast<double>(problem.n_observers());
  };
  for (int head = 0; head < config.query_heads; ++head) {
    pruning.record.output_norm.push_back(mean(outputs.norm.row(head)));
    pruning.record.output_change.push_back(mean(outputs.change.row(head)));
  }
}

// Of all tokens the hidden states above the layers computed so far, and their pages.
void Engine::Impl::Park(Sequence* sequence) {
  Sequence& s = *sequence;
  const int64_t n_rows = s.n_prompt() - s.n_reused;
  ParkedPrompt prompt{.tokens = s.request.tokens,
                      .n_layers = s.status.layer + 1,
                      .kv = s.kv.Fork(),
                      .first_row = s.n_reused};
  for (int layer = prompt.n_layers; layer < config.n_layers; ++layer) prompt.kv.Truncate(layer, 0);
  prompt.hidden.Resize(n_rows * config.hidden);
  std::copy_n(s.hidden.data(), n_rows * config.hidden, prompt.hidden.data());
  s.pruning->record.parked_bytes = parked.BytesOf(n_rows);
  parked.Park(std::move(prompt));
}

// The layers above see only what is retained; their positions stay.
void Engine::Impl::Remove(Sequence* sequence) {
  Sequence& s = *sequence;
  SequencePruning& pruning = *s.pruning;
  if (!s.pruner->policy->params.drop_kv && parked.Fits(s.n_prompt() - s.n_reused)) Park(sequence);
  const PruneProblem& problem = pruning.run->problem();
  const std::vector<uint8_t> removed = RemovalFlags(pruning.decision.removed, problem.n_chunks());
  for (const int64_t token : RetainedPositions(problem, removed)) {
    const auto row = std::ssize(s.rows);
    if (token >= s.n_reused && row < token) {
      std::copy_n(s.hidden.data() + (token - s.n_reused) * config.hidden, config.hidden,
                  s.hidden.data() + (row - s.n_reused) * config.hidden);
    }
    s.rows.push_back(static_cast<int32_t>(token));
  }
  s.n_whole =
      std::mismatch(s.rows.begin(), s.rows.end(), s.positions.begin()).first - s.rows.begin();
  s.status.n_prompt = std::ssize(s.rows);
  pruning.record.applied_layer = s.status.layer + 1;
  if (s.pruner->policy->params.drop_kv) DropBelow(sequence);
}

// Decode is not to read what was dropped in the layers below either. Where memory is short they
// stay.
void Engine::Impl::DropBelow(Sequence* sequence) {
  Sequence& s = *sequence;
  const std::vector<int64_t> kept(s.rows.begin(), s.rows.end());
  for (int layer = 0; layer <= s.status.layer; ++layer) {
    if (config.layers[layer].window > 0) continue;
    EvictFor(s.kv.PagesToKeep(layer, kept));
    const std::optional<int64_t> changed = s.kv.Keep(layer, kept);
    if (!changed.has_value()) continue;
    UpdatePlanes(*threads, &s.kv, layer, *changed, s.kv.n_tokens(layer));
    ++s.pruning->record.layers_compacted;
  }
}

// The first token is out: what the record still lacks (dual=lp) may take its time.
void Engine::Impl::FinishPruning(Sequence* sequence) {
  Sequence& s = *sequence;
  PruneLedger& record = s.pruning->record;
  CompareCosts(sequence);
  {
    ScopedTimer timer(s.ledger.prefill.seconds.prune);
    s.pruning->run->Finish();
  }
  record.policy = s.pruning->run->record();
  record.resumed_layers = s.resume_layer;
  record.resumed_tokens = s.resume_layer == 0 ? 0 : s.n_resumed;
  record.rows_computed = s.rows_done;
  record.rows_dense = (s.n_prompt() - s.n_reused) * config.n_layers;
  s.ledger.pruning = std::make_shared<PruneLedger>(std::move(record));
}

}  // namespace winnow
