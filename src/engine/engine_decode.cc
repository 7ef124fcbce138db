#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "engine/engine_impl.h"
#include "ops/kv_store.h"

namespace winnow {
namespace {

// Adds this share of a step that several sequences went through together.
void AddShare(StageSeconds* total, StageSeconds step, double share) {
  for (const StageSeconds::Stage& stage : StageSeconds::kStages) step.*stage.seconds *= share;
  *total += step;
}

// Which page spoils a sequence, if one does: the first layer's, since what it spoils follows.
std::string WhereNotFinite(const SequenceKv& kv) {
  const std::optional<KvPlace> place = FindNotFinite(kv);
  if (!place) return "";
  const int64_t slots = kv.pool().layout().slots;
  const int64_t first = place->token / slots * slots;
  const int64_t last = std::min(first + slots, kv.n_tokens(place->layer)) - 1;
  return fmt::format(
      ": nor is, in layer {} (from 1) and KV head {} (from 0), a key or value of position {}, in "
      "the page of positions {} to {}",
      place->layer + 1, place->kv_head, kv.position(place->layer, place->token),
      kv.position(place->layer, first), kv.position(place->layer, last));
}

}  // namespace

void Engine::Impl::RunDecode(const std::vector<Sequence*>& batch) {
  std::vector<std::vector<int64_t>> before;  // [B][L]
  for (const Sequence* s : batch) {
    before.emplace_back();
    for (int layer = 0; layer < config.n_layers; ++layer) {
      before.back().push_back(s->kv.n_tokens(layer));
    }
  }
  try {
    DecodeBatch(batch);
  } catch (const std::exception& error) {
    for (size_t b = 0; b < batch.size(); ++b) {
      for (int layer = 0; layer < config.n_layers; ++layer) {
        if (batch[b]->kv.n_tokens(layer) > before[b][layer]) {
          batch[b]->kv.Truncate(layer, before[b][layer]);
        }
      }
    }
    // The trouble has no owner (memory, most likely): the newest one makes room, the others try
    // again.
    Fail(batch.back(), error);
    return;
  }
  for (size_t b = 0; b < batch.size(); ++b) {
    try {
      TakeToken(batch[b],
                {logits.data() + b * config.vocabulary, static_cast<size_t>(config.vocabulary)});
    } catch (const std::exception& error) {
      Fail(batch[b], error);
    }
  }
}

void Engine::Impl::DecodeBatch(const std::vector<Sequence*>& batch) {
  const auto n = static_cast<int64_t>(batch.size());
  std::vector<TokenId> tokens;
  std::vector<DecodeSlot> slots;
  std::vector<AttentionAccount> accounts(batch.size());
  int64_t needed_pages = 0;
  for (size_t b = 0; b < batch.size(); ++b) {
    Sequence* s = batch[b];
    for (int layer = 0; layer < config.n_layers; ++layer) {
      needed_pages += s->kv.PagesNeeded(layer, 1);
    }
    tokens.push_back(s->generated.back());
    slots.push_back({.kv = &s->kv,
                     .position = static_cast<int32_t>(s->n_stored()),
                     .policy = s->policy,
                     .memory = s->memory.get(),
                     .n_generated = static_cast<int64_t>(s->generated.size()),
                     .account = &accounts[b],
                     .probe = s->request.probe});
  }
  EvictFor(needed_pages);
  batch_hidden.Resize(n * config.hidden);
  logits.Resize(n * config.vocabulary);
  const TensorView<float, 2> hidden(batch_hidden.data(), {n, config.hidden});
  StageSeconds seconds;
  {
    ScopedTimer timer(seconds.embed);
    backbone->Embed(tokens, hidden);
  }
  decode.Run(slots, hidden, &seconds);
  {
    ScopedTimer timer(seconds.logits);
    backbone->Logits(hidden, {logits.data(), {n, config.vocabulary}});
  }
  for (size_t b = 0; b < batch.size(); ++b) batch[b]->ledger.decode.MakeRoomFor(accounts[b]);
  // Nothing throws from here on: the step is committed.
  for (size_t b = 0; b < batch.size(); ++b) {
    batch[b]->positions.push_back(slots[b].position);
    batch[b]->ledger.decode.AddStep(accounts[b]);
    AddShare(&batch[b]->ledger.decode.seconds, seconds, 1.0 / static_cast<double>(n));
  }
}

void Engine::Impl::TakeToken(Sequence* sequence, std::span<const float> row_logits) {
  Sequence& s = *sequence;
  if (!std::all_of(row_logits.begin(), row_logits.end(),
                   [](float x) { return std::isfinite(x); })) {
    Throw(ErrorKind::kInput, "the model's logits after token {} are not finite{}",
          s.n_prompt() + static_cast<int64_t>(s.generated.size()), WhereNotFinite(s.kv));
  }
  if (s.request.on_logits) {
    s.request.on_logits(static_cast<int64_t>(s.generated.size()), row_logits);
  }
  TokenId token = 0;
  {
    ScopedTimer timer(s.ledger.decode.seconds.sampling);
    if (s.generated.size() < s.request.forced_tokens.size()) {
      token = s.request.forced_tokens[s.generated.size()];
      s.sampler.Accept(token);
    } else {
      token = s.sampler.Sample(row_logits);
    }
  }
  AddToken(sequence, token);
}

void Engine::Impl::AddToken(Sequence* sequence, TokenId token) {
  Sequence& s = *sequence;
  s.generated.push_back(token);
  s.last_token = Clock::now();
  if (s.generated.size() == 1) s.first_token = s.last_token;
  if (!s.request.save_kv.empty()) SavePages(sequence);
  const std::optional<FinishReason> reason = ShowToken(sequence, token);
  if (s.generated.size() == 1 && s.pruning != nullptr) FinishPruning(sequence);
  if (reason.has_value()) Finish(sequence, *reason);
}

// Its text goes to whoever listens. Why the answer ends with it, if it does.
std::optional<FinishReason> Engine::Impl::ShowToken(Sequence* sequence, TokenId token) {
  Sequence& s = *sequence;
  if (tokenizer != nullptr) {
    if (!s.request.ignore_end_tokens && tokenizer->IsEndOfGeneration(token)) {
      return FinishReason::kEndToken;
    }
    const std::string text = s.stream.Push(tokenizer->Piece(token));
    if (!text.empty() && s.request.on_text) s.request.on_text(text);
    if (s.stream.stopped()) return FinishReason::kStopString;
  }
  if (std::ssize(s.generated) >= s.request.max_new_tokens) return FinishReason::kMaxTokens;
  if (s.n_stored() >= context_tokens) return FinishReason::kContextFull;
  return std::nullopt;
}

}  // namespace winnow
