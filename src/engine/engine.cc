#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <mutex>
#include <new>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "attention/decode.h"
#include "attention/prefill.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kv/prefix_cache.h"

namespace winnow {
namespace {

// Contexts that the pool holds by default, if memory allows: the sequences of a small batch, or the
// prefixes of a conversation. Unused pages cost nothing.
constexpr int kDefaultContexts = 4;
// Share of the available memory that the pool may take; the rest is for activations and the system.
constexpr double kPoolShare = 0.8;

std::vector<int64_t> Windows(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  return windows;
}

double Mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Adds this share of a step that several sequences went through together.
void AddShare(StageSeconds* total, StageSeconds step, double share) {
  for (double StageSeconds::*stage : StageSeconds::kStages) step.*stage *= share;
  *total += step;
}

}  // namespace

struct Engine::Impl {
  Impl(Backbone* backbone_in, const Tokenizer* tokenizer_in, ThreadPool* threads,
       const EngineOptions& options_in)
      : backbone(backbone_in),
        config(backbone_in->config()),
        tokenizer(tokenizer_in),
        options(options_in),
        layout(config.kv_heads, options_in.page_slots, config.head_dim, options_in.kv_dtype),
        context_tokens(ResolveContext()),
        pages(layout, ResolveCapacity()),
        prefixes(&pages, Windows(config)),
        prefill(backbone_in, threads),
        decode(backbone_in, threads) {}

  int64_t ResolveContext() const;
  int64_t ResolveCapacity() const;
  int64_t WorstCase(int64_t n_tokens) const {
    return WorstCasePages(config, n_tokens, layout.slots, options.prefill_chunk);
  }

  void ValidateRequest(const Request& request) const;
  void ApplyCancellations();
  void Admit(Sequence* sequence);
  void StartPrefill(Sequence* sequence);
  // The longest that the request can become.
  int64_t TotalTokens(const Request& request) const {
    const auto n_prompt = static_cast<int64_t>(request.tokens.size());
    return n_prompt + std::min(request.max_new_tokens, context_tokens - n_prompt);
  }
  // Admission promised these pages; resident prefixes may have to give way.
  void EvictFor(int64_t needed_pages) {
    if (needed_pages > pages.free_pages()) prefixes.Evict(needed_pages - pages.free_pages());
  }

  void RunQuantum(Sequence* sequence, const PlannedQuantum& quantum);
  void FinishPrefill(Sequence* sequence);
  void EmitPromptLogits(Sequence* sequence, int64_t begin, int64_t end);
  void ReportProgress(const Sequence& sequence) const;

  void RunDecode(const std::vector<Sequence*>& batch);
  void DecodeBatch(const std::vector<Sequence*>& batch);
  void TakeToken(Sequence* sequence, std::span<const float> row_logits);

  void HashPages(Sequence* sequence, int64_t n_tokens);
  void RememberPrefix(Sequence* sequence, int64_t n_tokens);
  void Finish(Sequence* sequence, FinishReason reason);
  // Inside a catch block: the request fails with the exception's message.
  void Fail(Sequence* sequence, const std::exception& error);

  Backbone* backbone;
  const ModelConfig& config;
  const Tokenizer* tokenizer;
  EngineOptions options;
  PageLayout layout;
  int64_t context_tokens;
  PagePool pages;
  PrefixCache prefixes;
  PrefillPipeline prefill;
  DecodePipeline decode;

  std::list<Sequence> sequences;  // in order of submission
  std::vector<RequestResult> results;
  RequestId next_id = 1;
  bool stepping = false;
  AlignedBuffer<float> batch_hidden;  // [B, E]
  AlignedBuffer<float> logits;        // [B, V]

  std::mutex cancel_mutex;
  std::unordered_set<RequestId> cancelled;
};

int64_t Engine::Impl::ResolveContext() const {
  if (options.prefill_chunk < 1 || options.prefill_chunk > backbone->max_tokens()) {
    Throw(ErrorKind::kUsage, "the prefill chunk must be between 1 and {} tokens, not {}",
          backbone->max_tokens(), options.prefill_chunk);
  }
  if (options.max_batch < 1 || options.max_batch > backbone->max_tokens()) {
    Throw(ErrorKind::kUsage, "the batch must be between 1 and {} sequences, not {}",
          backbone->max_tokens(), options.max_batch);
  }
  if (options.context_tokens < 0 || options.context_tokens > config.context_length) {
    Throw(ErrorKind::kUsage, "a context of {} tokens: this model takes 1 to {}",
          options.context_tokens, config.context_length);
  }
  const int64_t context =
      options.context_tokens == 0 ? config.context_length : options.context_tokens;
  return std::min(context, kMaxAttentionTokens);
}

int64_t Engine::Impl::ResolveCapacity() const {
  const auto page_bytes = static_cast<int64_t>(layout.page_bytes);
  const auto allowed =
      static_cast<int64_t>(static_cast<double>(AvailableMemoryBytes()) * kPoolShare);
  const int64_t one_context = WorstCase(context_tokens) * page_bytes;
  const int64_t asked = options.kv_bytes > 0         ? options.kv_bytes
                        : options.context_tokens > 0 ? one_context
                                                     : 0;
  if (options.kv_bytes < 0) Throw(ErrorKind::kUsage, "KV memory must not be negative");
  if (asked > allowed) {
    Throw(ErrorKind::kResource,
          "{:.0f} MiB of KV memory were asked for and {:.0f} MiB may be used: a context of {} "
          "tokens would fit",
          Mebibytes(asked), Mebibytes(allowed),
          TokensThatFit(config, allowed / page_bytes, layout.slots, options.prefill_chunk));
  }
  const int64_t bytes =
      options.kv_bytes > 0 ? options.kv_bytes : std::min(allowed, kDefaultContexts * one_context);
  const int64_t capacity = bytes / page_bytes;
  if (capacity < WorstCase(1)) {
    Throw(
        ErrorKind::kResource,
        "{:.2f} MiB of KV memory hold no token: one needs a page in each of {} layers, {:.2f} MiB",
        Mebibytes(bytes), config.n_layers, Mebibytes(WorstCase(1) * page_bytes));
  }
  return capacity;
}

void Engine::Impl::ValidateRequest(const Request& request) const {
  const auto n_prompt = static_cast<int64_t>(request.tokens.size());
  if (n_prompt == 0) Throw(ErrorKind::kInput, "the prompt is empty");
  for (TokenId token : request.tokens) {
    if (token < 0 || token >= config.vocabulary) {
      Throw(ErrorKind::kInput, "token {} is not in the model's vocabulary of {}", token,
            config.vocabulary);
    }
  }
  if (request.max_new_tokens < 1) {
    Throw(ErrorKind::kUsage, "at least one new token must be asked for, not {}",
          request.max_new_tokens);
  }
  request.sampling.Validate();
  if (n_prompt >= context_tokens) {
    Throw(
        ErrorKind::kInput,
        "the prompt has {} tokens and the context holds {}, one of them for the answer: shorten or "
        "split the documents{}",
        n_prompt, context_tokens,
        context_tokens < config.context_length
            ? fmt::format(", or raise --ctx (this model takes up to {})", config.context_length)
            : ", or use a model with a longer context");
  }
  const int64_t n_total = TotalTokens(request);
  if (WorstCase(n_total) > pages.capacity_pages()) {
    Throw(ErrorKind::kResource,
          "{} prompt tokens and {} new ones need {:.0f} MiB of KV memory and the pool has {:.0f} "
          "MiB: "
          "{} tokens would fit (--kv-memory raises it)",
          n_prompt, n_total - n_prompt,
          Mebibytes(WorstCase(n_total) * static_cast<int64_t>(layout.page_bytes)),
          Mebibytes(pages.capacity_pages() * static_cast<int64_t>(layout.page_bytes)),
          TokensThatFit(config, pages.capacity_pages(), layout.slots, options.prefill_chunk));
  }
}

void Engine::Impl::ApplyCancellations() {
  std::unordered_set<RequestId> ids;
  {
    const std::lock_guard<std::mutex> lock(cancel_mutex);
    ids.swap(cancelled);
  }
  if (ids.empty()) return;
  for (auto it = sequences.begin(); it != sequences.end();) {
    Sequence* sequence = &*it++;  // Finish erases it
    if (!ids.contains(sequence->id)) continue;
    try {
      Finish(sequence, FinishReason::kCancelled);
    } catch (const std::exception& error) {
      Fail(sequence, error);
    }
  }
}

void Engine::Impl::Admit(Sequence* sequence) {
  sequence->admitted = Clock::now();
  sequence->status.phase = Phase::kPrefill;
}

// Looks for resident pages and takes memory for the rest: not before the sequence's turn comes,
// since the one before it may leave pages that it can use.
void Engine::Impl::StartPrefill(Sequence* sequence) {
  Sequence& s = *sequence;
  s.positions.resize(s.n_prompt());
  std::iota(s.positions.begin(), s.positions.end(), 0);
  if (options.prefix_reuse && !s.request.on_prompt_logits) {
    HashPages(sequence, s.n_prompt());
    // The last token is always computed: its logits are wanted.
    const int64_t reusable = (s.n_prompt() - 1) / layout.slots;
    s.n_reused = prefixes.Adopt(s.page_hashes, reusable, &s.kv) * layout.slots;
  }
  s.status.next_token = s.n_reused;
  s.hidden.Resize((s.n_prompt() - s.n_reused) * config.hidden);
  s.prefill_started = true;
}

void Engine::Impl::RunQuantum(Sequence* sequence, const PlannedQuantum& quantum) {
  Sequence& s = *sequence;
  if (!s.prefill_started) {
    StartPrefill(sequence);
    return;
  }
  const int64_t n = quantum.end - quantum.begin;
  const bool last_layer = quantum.layer + 1 == config.n_layers;
  EvictFor(s.kv.PagesNeeded(quantum.layer, n));
  // Above the last layer only the last token of the prompt is wanted, unless all logits are.
  const int64_t first_output = !last_layer || s.request.on_prompt_logits ? 0
                               : quantum.end == s.n_prompt()             ? n - 1
                                                                         : n;
  const TensorView<float, 2> hidden(s.hidden.data() + (quantum.begin - s.n_reused) * config.hidden,
                                    {n, config.hidden});
  if (quantum.layer == 0) {
    ScopedTimer timer(s.ledger.prefill.seconds.embed);
    backbone->Embed(std::span(s.request.tokens).subspan(quantum.begin, n), hidden);
  }
  prefill.Run({.kv = &s.kv,
               .layer = quantum.layer,
               .positions = std::span(s.positions).subspan(quantum.begin, n),
               .hidden = hidden,
               .first_output = first_output},
              &s.ledger.prefill.seconds, &s.ledger.prefill.attention);
  if (last_layer && s.request.on_prompt_logits)
    EmitPromptLogits(sequence, quantum.begin, quantum.end);

  s.status.next_token = quantum.end;
  if (quantum.end == s.n_prompt()) {
    s.status.next_token = s.n_reused;
    ++s.status.layer;
  }
  ReportProgress(s);
  if (s.status.layer == config.n_layers) FinishPrefill(sequence);
}

void Engine::Impl::ReportProgress(const Sequence& s) const {
  if (!s.request.on_prefill) return;
  const int64_t n_new = s.n_prompt() - s.n_reused;
  const int64_t done = s.status.layer * n_new + (s.status.next_token - s.n_reused);
  s.request.on_prefill({.tokens_done = done / config.n_layers,
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
      sequence->request.on_prompt_logits(first + t, {logits.data() + t * config.vocabulary,
                                                     static_cast<size_t>(config.vocabulary)});
    }
  }
}

void Engine::Impl::FinishPrefill(Sequence* sequence) {
  Sequence& s = *sequence;
  s.ledger.prefill.tokens = s.n_prompt() - s.n_reused;
  RememberPrefix(sequence, s.n_prompt());
  logits.Resize(config.vocabulary);
  const float* last = s.hidden.data() + (s.n_prompt() - 1 - s.n_reused) * config.hidden;
  {
    ScopedTimer timer(s.ledger.prefill.seconds.logits);
    backbone->Logits({last, {1, config.hidden}}, {logits.data(), {1, config.vocabulary}});
  }
  s.hidden = {};
  s.status.phase = Phase::kDecode;
  TakeToken(sequence, logits.span());
}

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
    slots.push_back(
        {.kv = &s->kv, .position = static_cast<int32_t>(s->n_stored()), .account = &accounts[b]});
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
  // Nothing throws from here on: the step is committed.
  for (size_t b = 0; b < batch.size(); ++b) {
    batch[b]->positions.push_back(slots[b].position);
    batch[b]->ledger.decode.attention += accounts[b];
    AddShare(&batch[b]->ledger.decode.seconds, seconds, 1.0 / static_cast<double>(n));
    ++batch[b]->ledger.decode.tokens;
  }
}

void Engine::Impl::TakeToken(Sequence* sequence, std::span<const float> row_logits) {
  Sequence& s = *sequence;
  if (!std::all_of(row_logits.begin(), row_logits.end(),
                   [](float x) { return std::isfinite(x); })) {
    Throw(ErrorKind::kInput, "the model's logits after token {} are not finite",
          s.n_prompt() + static_cast<int64_t>(s.generated.size()));
  }
  if (s.request.on_logits) {
    s.request.on_logits(static_cast<int64_t>(s.generated.size()), row_logits);
  }
  TokenId token = 0;
  {
    ScopedTimer timer(s.ledger.decode.seconds.sampling);
    token = s.sampler.Sample(row_logits);
  }
  s.generated.push_back(token);
  s.last_token = Clock::now();
  if (s.generated.size() == 1) s.first_token = s.last_token;

  if (tokenizer != nullptr) {
    if (!s.request.ignore_end_tokens && tokenizer->IsEndOfGeneration(token)) {
      Finish(sequence, FinishReason::kEndToken);
      return;
    }
    const std::string text = s.stream.Push(tokenizer->Piece(token));
    if (!text.empty() && s.request.on_text) s.request.on_text(text);
    if (s.stream.stopped()) {
      Finish(sequence, FinishReason::kStopString);
      return;
    }
  }
  if (static_cast<int64_t>(s.generated.size()) >= s.request.max_new_tokens) {
    Finish(sequence, FinishReason::kMaxTokens);
  } else if (s.n_stored() >= context_tokens) {
    Finish(sequence, FinishReason::kContextFull);
  }
}

// Extends the page hashes to the full pages of the first `n_tokens` tokens.
void Engine::Impl::HashPages(Sequence* sequence, int64_t n_tokens) {
  const int64_t slots = layout.slots;
  std::vector<TokenId> tokens(slots);
  auto& hashes = sequence->page_hashes;
  for (auto page = static_cast<int64_t>(hashes.size()); (page + 1) * slots <= n_tokens; ++page) {
    for (int64_t i = 0; i < slots; ++i) tokens[i] = sequence->TokenAt(page * slots + i);
    hashes.push_back(PrefixCache::PageHash(
        page == 0 ? Hash128{} : hashes.back(), tokens,
        std::span(sequence->positions).subspan(page * slots, slots), sequence->arm.fingerprint));
  }
}

void Engine::Impl::RememberPrefix(Sequence* sequence, int64_t n_tokens) {
  if (!options.prefix_reuse || sequence->request.on_prompt_logits) return;
  HashPages(sequence, n_tokens);
  prefixes.Insert(sequence->page_hashes, sequence->kv);
}

void Engine::Impl::Fail(Sequence* sequence, const std::exception& error) {
  sequence->failure = error.what();
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    sequence->failure_kind = known->kind();
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    sequence->failure = "out of memory";
    sequence->failure_kind = ErrorKind::kResource;
  }
  sequence->request.on_text = nullptr;  // it may be what threw
  Finish(sequence, FinishReason::kFailed);
}

void Engine::Impl::Finish(Sequence* sequence, FinishReason reason) {
  Sequence& s = *sequence;
  const std::string rest = s.stream.Finish();
  if (!rest.empty() && s.request.on_text) s.request.on_text(rest);

  RequestResult result;
  result.id = s.id;
  result.finish_reason = reason;
  result.error = s.failure;
  result.error_kind = s.failure_kind;
  result.text = s.stream.text();
  result.prompt_tokens = s.n_prompt();
  result.reused_tokens = s.n_reused;
  result.ledger = s.ledger;
  result.kv_bytes = s.kv.allocated_pages() * static_cast<int64_t>(layout.page_bytes);
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  const bool was_admitted = s.status.phase != Phase::kWaiting;
  const Clock::time_point admitted = was_admitted ? s.admitted : Clock::now();
  result.queue_seconds = seconds(s.submitted, admitted);
  if (s.generated.empty()) {
    result.prefill_seconds = seconds(admitted, Clock::now());
  } else {
    result.prefill_seconds = seconds(admitted, s.first_token);
    result.ttft_seconds = seconds(s.submitted, s.first_token);
    result.decode_seconds = seconds(s.first_token, s.last_token);
    if (reason != FinishReason::kFailed) {
      RememberPrefix(sequence, static_cast<int64_t>(s.positions.size()));
    }
  }
  result.tokens = std::move(s.generated);
  results.push_back(std::move(result));
  sequences.remove_if([sequence](const Sequence& other) { return &other == sequence; });
}

Engine::Engine(Backbone* backbone, const Tokenizer* tokenizer, ThreadPool* pool,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(backbone, tokenizer, pool, options)) {}

Engine::~Engine() = default;

RequestId Engine::Submit(Request request) {
  impl_->ValidateRequest(request);
  Arm arm = ParseArm(request.arm);
  const RequestId id = impl_->next_id++;
  {
    // Cancelled before it existed: that was an unknown id.
    const std::lock_guard<std::mutex> lock(impl_->cancel_mutex);
    impl_->cancelled.erase(id);
  }
  const auto n_prompt = static_cast<int64_t>(request.tokens.size());
  const int64_t n_total = impl_->TotalTokens(request);
  impl_->sequences.emplace_back(id, std::move(request), std::move(arm),
                                SequenceKv(&impl_->pages, impl_->config.n_layers),
                                impl_->config.vocabulary, static_cast<int>(impl_->context_tokens));
  impl_->sequences.back().status = {.worst_case_pages = impl_->WorstCase(n_total),
                                    .n_prompt = n_prompt};
  return id;
}

void Engine::Cancel(RequestId id) {
  const std::lock_guard<std::mutex> lock(impl_->cancel_mutex);
  impl_->cancelled.insert(id);
}

bool Engine::Step() {
  WINNOW_CHECK(!impl_->stepping, "Engine::Step called from a callback");
  impl_->stepping = true;
  struct Leave {
    bool* stepping;
    ~Leave() { *stepping = false; }
  } leave{&impl_->stepping};
  impl_->ApplyCancellations();
  if (impl_->sequences.empty()) return false;
  std::vector<Sequence*> all;
  std::vector<SequenceStatus> statuses;
  for (Sequence& s : impl_->sequences) {
    all.push_back(&s);
    statuses.push_back(s.status);
  }
  const StepPlan plan = PlanStep(statuses, {.capacity_pages = impl_->pages.capacity_pages(),
                                            .max_batch = impl_->options.max_batch,
                                            .prefill_chunk = impl_->options.prefill_chunk});
  for (int i : plan.admit) impl_->Admit(all[i]);
  if (!plan.decode.empty()) {
    std::vector<Sequence*> batch;
    for (int i : plan.decode) batch.push_back(all[i]);
    impl_->RunDecode(batch);
  }
  for (const PlannedQuantum& quantum : plan.prefill) {
    try {
      impl_->RunQuantum(all[quantum.sequence], quantum);
    } catch (const std::exception& error) {
      impl_->Fail(all[quantum.sequence], error);
    }
  }
  return true;
}

std::optional<RequestResult> Engine::TakeResult(RequestId id) {
  for (auto it = impl_->results.begin(); it != impl_->results.end(); ++it) {
    if (it->id != id) continue;
    RequestResult result = std::move(*it);
    impl_->results.erase(it);
    return result;
  }
  return std::nullopt;
}

RequestResult Engine::Run(Request request) {
  const RequestId id = Submit(std::move(request));
  while (true) {
    if (std::optional<RequestResult> result = TakeResult(id)) return *std::move(result);
    Step();
  }
}

int64_t Engine::context_tokens() const { return impl_->context_tokens; }

int64_t Engine::kv_bytes_per_token() const {
  const auto global = std::count_if(impl_->config.layers.begin(), impl_->config.layers.end(),
                                    [](const LayerConfig& layer) { return layer.window == 0; });
  return global * impl_->layout.TokenBytes(1);
}

int64_t Engine::pool_bytes() const {
  return impl_->pages.capacity_pages() * static_cast<int64_t>(impl_->layout.page_bytes);
}

int64_t Engine::active_requests() const { return static_cast<int64_t>(impl_->sequences.size()); }

void Engine::ClearPrefixes() { impl_->prefixes.Evict(impl_->pages.capacity_pages()); }

void Engine::CheckInvariants() const {
  impl_->pages.CheckInvariants();
  impl_->prefixes.CheckInvariants();
  for (const Sequence& s : impl_->sequences) s.kv.CheckInvariants();
}

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEndToken:
      return "stop";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kMaxTokens:
      return "length";
    case FinishReason::kContextFull:
      return "context_full";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  WINNOW_CHECK(false, "unknown finish reason {}", static_cast<int>(reason));
}

}  // namespace winnow
