#include "engine/engine.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "engine/engine_impl.h"

namespace winnow {
namespace {

std::vector<int64_t> Windows(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  return windows;
}

PlaneSet AllPlanes(const EngineOptions& options, int64_t context_tokens) {
  PlaneSet planes = options.planes;
  planes.Add(options.auto_arm.planes(context_tokens));
  return planes;
}

}  // namespace

Engine::Impl::Impl(Backbone* backbone_in, const Tokenizer* tokenizer_in, ThreadPool* threads_in,
                   const EngineOptions& options_in)
    : backbone(backbone_in),
      threads(threads_in),
      config(backbone_in->config()),
      tokenizer(tokenizer_in),
      options(options_in),
      context_tokens(ResolveContext()),
      layout(config.kv_heads, options_in.page_slots, config.head_dim, options_in.kv_dtype,
             AllPlanes(options_in, context_tokens)),
      pages(layout, ResolveCapacity()),
      prefixes(&pages, Windows(config)),
      parked(options_in.parking_bytes, Windows(config), options_in.page_slots, config.hidden),
      prefill(backbone_in, threads_in),
      decode(backbone_in, threads_in) {}

bool Engine::Impl::Step(bool decode) {
  WINNOW_CHECK(!stepping, "Engine::Step called from a callback");
  stepping = true;
  struct Leave {
    bool* stepping;
    ~Leave() { *stepping = false; }
  } leave{&stepping};
  ApplyCancellations();
  std::vector<Sequence*> all;
  std::vector<SequenceStatus> statuses;
  for (Sequence& s : sequences) {
    all.push_back(&s);
    statuses.push_back(s.status);
  }
  const StepPlan plan = PlanStep(statuses, {.capacity_pages = pages.capacity_pages(),
                                            .max_batch = options.max_batch,
                                            .prefill_chunk = options.prefill_chunk,
                                            .decode = decode});
  for (int i : plan.admit) Admit(all[i]);
  if (!plan.decode.empty()) {
    std::vector<Sequence*> batch;
    for (int i : plan.decode) batch.push_back(all[i]);
    RunDecode(batch);
  }
  for (const PlannedQuantum& quantum : plan.prefill) {
    try {
      RunQuantum(all[quantum.sequence], quantum);
    } catch (const std::exception& error) {
      Fail(all[quantum.sequence], error);
    }
  }
  return !plan.admit.empty() || !plan.decode.empty() || !plan.prefill.empty();
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

AutoArm::Choice Engine::Impl::ChooseArm(const Request& request) const {
  if (request.arm != kAutoArm) return {request.arm, ""};
  return options.auto_arm.For(static_cast<int64_t>(request.tokens.size()));
}

DecodePolicy* Engine::Impl::PolicyOf(const Arm& arm) {
  if (const auto known = policies.find(arm.resolved); known != policies.end()) {
    return known->second.get();
  }
  std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm.text);
  if (policy == nullptr) return nullptr;
  if (!layout.planes.Contains(policy->planes())) {
    Throw(ErrorKind::kUsage,
          "the arm '{}' needs copies or summaries of the keys that this engine's pages do not keep",
          arm.text);
  }
  if (policy->residual != nullptr) policy->residual->Bind({config, options.model_path});
  return policies.emplace(arm.resolved, std::move(policy)).first->second.get();
}

// Extends the page hashes to the full pages of the first `n_tokens` tokens.
// A page's hash says under which arm its tokens passed the layers below: dense ones are for all,
// others for their own arm, whatever comes after them.
void Engine::Impl::HashPages(Sequence* sequence, int64_t n_tokens) {
  const int64_t slots = layout.slots;
  std::vector<TokenId> tokens(slots);
  auto& hashes = sequence->page_hashes;
  for (auto page = static_cast<int64_t>(hashes.size()); (page + 1) * slots <= n_tokens; ++page) {
    for (int64_t i = 0; i < slots; ++i) tokens[i] = sequence->TokenAt(page * slots + i);
    const bool dense = (page + 1) * slots <= sequence->sparse_from;
    hashes.push_back(
        PrefixCache::PageHash(page == 0 ? Hash128{} : hashes.back(), tokens,
                              std::span(sequence->positions).subspan(page * slots, slots),
                              dense ? 0 : sequence->arm.fingerprint));
  }
}

void Engine::Impl::RememberPrefix(Sequence* sequence, int64_t n_tokens) {
  if (!options.prefix_reuse || sequence->request.watches_prompt()) return;
  // What follows a dropped chunk lies elsewhere in the layers above, and has not seen it.
  n_tokens = std::min(n_tokens, sequence->n_whole);
  HashPages(sequence, n_tokens);
  prefixes.Insert(std::span(sequence->page_hashes).first(n_tokens / layout.slots), sequence->kv);
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
  result.arm_resolved = s.arm.resolved;
  result.arm_reason = s.arm_reason;
  result.prompt_tokens = s.n_prompt();
  result.reused_tokens = s.n_reused;
  result.ledger = s.ledger;
  result.kv_transfer = s.kv_transfer;
  result.kv_bytes =
      s.kv.allocated_pages() * layout.TotalBytes() + (s.memory == nullptr ? 0 : s.memory->bytes());
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
  std::optional<HandoverNote> note = impl_->PrepareHandover(&request);
  impl_->ValidateRequest(request);
  AutoArm::Choice choice = impl_->ChooseArm(request);
  Arm arm = ParseArm(choice.arm);
  DecodePolicy* policy = impl_->PolicyOf(arm);
  EnginePruner* pruner = impl_->PrunerOf(arm);
  std::unique_ptr<ResidualMemory> memory;
  if (policy != nullptr && policy->residual != nullptr) memory = policy->residual->NewMemory();
  if (note.has_value() && memory != nullptr && memory->sees_prompt()) {
    Throw(ErrorKind::kUsage,
          "the arm '{}' needs the queries of every prompt token, and a KV file holds none",
          arm.text);
  }
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
  Sequence& s = impl_->sequences.back();
  s.policy = policy;
  s.pruner = pruner;
  s.arm_reason = std::move(choice.reason);
  s.memory = std::move(memory);
  s.status = {.worst_case_pages = impl_->WorstCase(n_total), .n_prompt = n_prompt};
  s.handover = std::move(note);
  return id;
}

void Engine::Cancel(RequestId id) {
  const std::lock_guard<std::mutex> lock(impl_->cancel_mutex);
  impl_->cancelled.insert(id);
}

bool Engine::Step() { return impl_->Step(/*decode=*/true); }

bool Engine::StepPrefill() { return impl_->Step(/*decode=*/false); }

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
  return impl_->pages.capacity_pages() * impl_->layout.TotalBytes();
}

int64_t Engine::active_requests() const { return static_cast<int64_t>(impl_->sequences.size()); }

void Engine::ClearPrefixes() {
  while (impl_->parked.DropOldest()) {
  }
  impl_->prefixes.Evict(impl_->pages.capacity_pages());
}

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
