// The state of an Engine and the parts of a step, for the files that implement them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "attention/decode.h"
#include "attention/prefill.h"
#include "core/memory.h"
#include "engine/engine.h"
#include "engine/parking.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kv/page_layout.h"
#include "kv/page_pool.h"
#include "kv/prefix_cache.h"
#include "ops/observer_rows.h"

namespace winnow {

struct Engine::Impl {
  Impl(Backbone* backbone_in, const Tokenizer* tokenizer_in, ThreadPool* threads_in,
       const EngineOptions& options_in);

  // engine_limits.cc: what the options and the memory allow, and which requests fit.
  int64_t ResolveContext() const;
  int64_t ResolveCapacity() const;
  int64_t WorstCase(int64_t n_tokens) const {
    return WorstCasePages(config, n_tokens, layout.slots, options.prefill_chunk);
  }
  void ValidateRequest(const Request& request) const;
  // The longest that the request can become.
  int64_t TotalTokens(const Request& request) const {
    const auto n_prompt = static_cast<int64_t>(request.tokens.size());
    return n_prompt + std::min(request.max_new_tokens, context_tokens - n_prompt);
  }

  // engine_prefill.cc
  void StartPrefill(Sequence* sequence);
  void PreferOwnPages(Sequence* sequence, int64_t reusable);
  void RunQuantum(Sequence* sequence, const PlannedQuantum& quantum);
  // One layer of one chunk; `hidden` [n, E] of its tokens.
  void RunLayer(Sequence* sequence, const PlannedQuantum& quantum, TensorView<float, 2> hidden,
                int64_t first_output);
  void FinishPrefill(Sequence* sequence);
  void EmitPromptLogits(Sequence* sequence, int64_t begin, int64_t end);
  void ReportProgress(const Sequence& sequence) const;

  // engine_prune.cc
  void StartPruning(Sequence* sequence);
  // Starts where a parked prompt with the same beginning was pruned, if there is one.
  void Resume(Sequence* sequence);
  // Whether it is known what the request's layers take.
  bool KnowsCosts(const Sequence& sequence) const {
    return options.prefill_costs.known() && !sequence.request.on_prompt_logits;
  }
  // Before any layer is scored: what pruning would take, and whether it is left alone therefore.
  void ForeseeCosts(Sequence* sequence);
  void FinishLayer(Sequence* sequence);
  void ObserveLayer(Sequence* sequence);
  void Park(Sequence* sequence);
  void Remove(Sequence* sequence);
  void DropBelow(Sequence* sequence);
  void FinishPruning(Sequence* sequence);
  void CompareCosts(Sequence* sequence);

  // engine_decode.cc
  void RunDecode(const std::vector<Sequence*>& batch);
  void DecodeBatch(const std::vector<Sequence*>& batch);
  void TakeToken(Sequence* sequence, std::span<const float> row_logits);
  void AddToken(Sequence* sequence, TokenId token);
  std::optional<FinishReason> ShowToken(Sequence* sequence, TokenId token);

  // engine_handover.cc
  const Hash128& ModelHash();  // zero: the model is not from a file
  // What Submit has to do for save_kv and load_kv; with the latter fills the request's tokens from
  // the file, whose note it returns. Throws as Submit does.
  std::optional<HandoverNote> PrepareHandover(Request* request);
  void SavePages(Sequence* sequence);
  void LoadPages(Sequence* sequence);

  // engine.cc
  bool Step(bool decode);
  void ApplyCancellations();
  void Admit(Sequence* sequence);
  // Admission promised these pages; resident prefixes may have to give way.
  void EvictFor(int64_t needed_pages) {
    if (needed_pages > pages.free_pages()) prefixes.Evict(needed_pages - pages.free_pages());
    while (needed_pages > pages.free_pages() && parked.DropOldest()) {
      prefixes.Evict(needed_pages - pages.free_pages());
    }
  }
  // The policies of an arm; null for dense. Throws Error(kUsage) as Submit does.
  DecodePolicy* PolicyOf(const Arm& arm);
  EnginePruner* PrunerOf(const Arm& arm);  // likewise; null: prompts are not pruned
  // What the request's arm stands for.
  AutoArm::Choice ChooseArm(const Request& request) const;
  void HashPages(Sequence* sequence, int64_t n_tokens);
  void RememberPrefix(Sequence* sequence, int64_t n_tokens);
  void Finish(Sequence* sequence, FinishReason reason);
  // Inside a catch block: the request fails with the exception's message.
  void Fail(Sequence* sequence, const std::exception& error);

  Backbone* backbone;
  ThreadPool* threads;
  const ModelConfig& config;
  const Tokenizer* tokenizer;
  EngineOptions options;
  int64_t context_tokens;
  PageLayout layout;
  PagePool pages;
  PrefixCache prefixes;
  ParkedPrompts parked;
  PrefillPipeline prefill;
  DecodePipeline decode;
  std::map<std::string, std::unique_ptr<DecodePolicy>> policies;  // by what the arm resolves to
  std::map<std::string, EnginePruner> pruners;                    // likewise
  ObserverRowsWorkspace observer_workspace;
  AlignedBuffer<float> mean_attention;  // [H, T] of the layer that is scored
  AlignedBuffer<double> chunk_mass;     // [H·U, k]
  AlignedBuffer<double> output_norms;   // [2, H·U]

  std::list<Sequence> sequences;  // in order of submission
  std::vector<RequestResult> results;
  RequestId next_id = 1;
  bool stepping = false;
  AlignedBuffer<float> batch_hidden;  // [B, E]
  AlignedBuffer<float> logits;        // [B, V]

  std::optional<Hash128> model_hash;  // once it was asked for

  std::mutex cancel_mutex;
  std::unordered_set<RequestId> cancelled;
};

}  // namespace winnow
