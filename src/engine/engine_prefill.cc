#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"

namespace winnow {

// Looks for resident pages and takes memory for the rest: not before the sequence's turn comes,
// since the one before it may leave pages that it can use.
void Engine::Impl::StartPrefill(Sequence* sequence) {
  Sequence& s = *sequence;
  s.positions.resize(s.n_prompt());
  std::iota(s.positions.begin(), s.positions.end(), 0);
  const bool whole_prompt = s.memory != nullptr && s.memory->sees_prompt();
  if (options.prefix_reuse && !s.request.watches_prompt() && !whole_prompt) {
    // The last token is always computed: its logits are wanted.
    const int64_t reusable = (s.n_prompt() - 1) / layout.slots;
    HashPages(sequence, s.n_prompt());
    if (s.policy != nullptr) PreferOwnPages(sequence, reusable);
    s.n_reused = prefixes.Adopt(s.page_hashes, reusable, &s.kv) * layout.slots;
  }
  s.n_resumed = s.n_reused;
  s.hidden.Resize((s.n_prompt() - s.n_reused) * config.hidden);
  if (s.pruner != nullptr) StartPruning(sequence);
  if (options.prefix_reuse && !s.request.watches_prompt() && !whole_prompt) Resume(sequence);
  if (s.pruning != nullptr) ForeseeCosts(sequence);
  s.status.next_token = s.FirstRow(0);
  if (s.policy != nullptr) s.sparse_from = std::min(s.sparse_from, s.n_prompt());
  s.prefill_started = true;
}

// A sparse request's pages after the dense ones may be its arm's: the answer of an earlier turn.
void Engine::Impl::PreferOwnPages(Sequence* sequence, int64_t reusable) {
  Sequence& s = *sequence;
  const int64_t n_dense = prefixes.Match(s.page_hashes, reusable);
  std::vector<Hash128> dense = s.page_hashes;
  s.page_hashes.resize(n_dense);
  s.sparse_from = n_dense * layout.slots;
  HashPages(sequence, s.n_prompt());
  if (prefixes.Match(s.page_hashes, reusable) > n_dense) return;
  s.page_hashes = std::move(dense);
  s.sparse_from = std::numeric_limits<int64_t>::max();
}

void Engine::Impl::RunQuantum(Sequence* sequence, const PlannedQuantum& quantum) {
  Sequence& s = *sequence;
  if (s.handover.has_value()) {
    LoadPages(sequence);
    return;
  }
  if (!s.prefill_started) {
    StartPrefill(sequence);
    return;
  }
  const int64_t n = quantum.end - quantum.begin;
  const bool last_layer = quantum.layer + 1 == config.n_layers;
  EvictFor(s.kv.PagesNeeded(quantum.layer, n));
  // Above the last layer only the last token of the prompt is wanted, unless all logits are.
  const int64_t first_output = !last_layer || s.request.on_prompt_logits ? 0
                               : quantum.end == s.status.n_prompt        ? n - 1
                                                                         : n;
  const TensorView<float, 2> hidden(s.hidden.data() + (quantum.begin - s.n_reused) * config.hidden,
                                    {n, config.hidden});
  if (quantum.layer == 0) {
    ScopedTimer timer(s.ledger.prefill.seconds.embed);
    backbone->Embed(std::span(s.request.tokens).subspan(quantum.begin, n), hidden);
  }
  RunLayer(sequence, quantum, hidden, first_output);
  if (last_layer && s.request.on_prompt_logits)
    EmitPromptLogits(sequence, quantum.begin, quantum.end);

  s.status.next_token = quantum.end;
  s.rows_done += n;
  if (quantum.end == s.status.n_prompt) {
    if (s.pruning != nullptr) FinishLayer(sequence);
    ++s.status.layer;
    s.status.next_token = s.FirstRow(s.status.layer);
  }
  ReportProgress(s);
  if (s.status.layer == config.n_layers) FinishPrefill(sequence);
}

void Engine::Impl::RunLayer(Sequence* sequence, const PlannedQuantum& quantum,
                            TensorView<float, 2> hidden, int64_t first_output) {
  Sequence& s = *sequence;
  SequencePruning* const pruning = s.pruning.get();
  const bool observes = pruning != nullptr && pruning->Monitors(quantum.layer + 1);
  double seconds = 0;
  Timed(seconds, [&] {
    prefill.Run({.kv = &s.kv,
                 .layer = quantum.layer,
                 .positions = s.row_positions().subspan(quantum.begin, hidden.shape[0]),
                 .hidden = hidden,
                 .first_output = first_output,
                 .memory = s.memory.get(),
                 .probe = s.request.probe,
                 .observers = observes ? &pruning->queries : nullptr},
                &s.ledger.prefill.seconds, &s.ledger.prefill.attention);
  });
  if (pruning == nullptr) return;
  PrefillSeconds& measured = pruning->record.cost.measured;
  (s.rows.empty() ? measured.below : measured.above) += seconds;
}

void Engine::Impl::ReportProgress(const Sequence& s) const {
  if (!s.request.on_prefill) return;
  const int64_t n_new = s.n_prompt() - s.n_reused;
  // Pruning shortens what the layers above are given.
  int64_t rows_left = s.FirstRow(s.status.layer) - s.status.next_token;
  for (int layer = s.status.layer; layer < config.n_layers; ++layer) {
    rows_left += s.status.n_prompt - s.FirstRow(layer);
  }
  s.request.on_prefill(
      {.tokens_done = n_new * s.rows_done / std::max<int64_t>(1, s.rows_done + rows_left),
       .tokens_total = n_new,
       .tokens_reused = s.n_reused,
       .seconds = SecondsSince(s.admitted)});
}

void Engine::Impl::EmitPromptLogits(Sequence* sequence, int64_t begin, int64_t end) {
  // A few rows at a time: V is large, and one row alone would read all of its weights.
  const int64_t block = std::min<int64_t>(16, backbone->max_tokens());
  logits.Resize(block * config.vocabulary);
  for (int64_t first = begin; first < end; first += block) {
    const int64_t n = std::min(block, end - first);
    backbone->Logits({sequence->hidden.data() + first * config.hidden, {n, config.hidden}},
                     {logits.data(), {n, config.vocabulary}});
    for (int64_t t = 0; t < n; ++t) {
      sequence->request.on_prompt_logits(
          sequence->row_positions()[first + t],
          {logits.data() + t * config.vocabulary, static_cast<size_t>(config.vocabulary)});
    }
  }
}

void Engine::Impl::FinishPrefill(Sequence* sequence) {
  Sequence& s = *sequence;
  s.ledger.prefill.tokens = s.n_prompt() - s.n_reused;
  RememberPrefix(sequence, s.n_prompt());
  logits.Resize(config.vocabulary);
  const float* last = s.hidden.data() + (s.status.n_prompt - 1 - s.n_reused) * config.hidden;
  {
    ScopedTimer timer(s.ledger.prefill.seconds.logits);
    backbone->Logits({last, {1, config.hidden}}, {logits.data(), {1, config.vocabulary}});
  }
  s.hidden = {};
  s.status.phase = Phase::kDecode;
  TakeToken(sequence, logits.span());
}

}  // namespace winnow
