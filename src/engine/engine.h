// The engine: many sequences over one model, one page pool and one thread pool, a step at a time.
//
// A step is plan → reserve → run → commit or roll back. It decodes one token of every decoding
// sequence, as one batch, and runs prefill quanta (one layer × one token chunk, layer-major) of
// those that are still reading their prompt. One thread calls Submit and Step; Cancel may come from
// any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "core/parallel.h"
#include "engine/request.h"
#include "kv/page_layout.h"
#include "model/backbone.h"
#include "policy/auto_arm.h"
#include "policy/prefill/prune_forecast.h"
#include "text/tokenizer.h"

namespace winnow {

struct EngineOptions {
  int64_t context_tokens = 0;  // longest sequence; 0: the model's context length
  int64_t kv_bytes = 0;        // page pool; 0: four contexts, or what fits in memory if less
  DType kv_dtype = DType::kF16;
  int page_slots = 32;          // G
  int64_t prefill_chunk = 512;  // tokens of a quantum
  int max_batch = 16;           // sequences that decode together
  bool prefix_reuse = true;
  // Of hidden states of pruned prompts, whose dropped chunks a later request may ask for; 0: none.
  int64_t parking_bytes = int64_t{1} << 28;
  // Of the model's file, for arms that are trained for one model; empty: not from a file.
  std::string model_path;
  PlaneSet planes;   // what sparse arms need (ArmPlanes); a request whose arm needs more is refused
  AutoArm auto_arm;  // the pages also keep what it needs, where the context is long enough for it
  // What layers take on this machine (MeasurePrefillCosts): then arms that prune leave prompts
  // alone for which that cannot pay. Unknown: nothing is foreseen.
  PrefillCosts prefill_costs;
};

class Engine {
 public:
  // `backbone` and `pool` outlive the engine; `tokenizer` too, or is null (token-only use: no text,
  // no stop strings, no end tokens). Throws Error(kUsage) for bad options, Error(kResource) if not
  // even one page a layer fits, saying what would.
  Engine(Backbone* backbone, const Tokenizer* tokenizer, ThreadPool* pool,
         const EngineOptions& options);
  ~Engine();

  // Queues a request. Throws Error(kInput) for an empty prompt or token ids outside the vocabulary;
  // Error(kInput) if the prompt leaves no room for an answer in the context (both lengths, and what
  // to do; an answer that reaches the end of the context ends there, kContextFull);
  // Error(kResource) if its KV can never fit the pool (what would fit); Error(kUsage) for a bad arm
  // or sampling parameter, and for an arm whose planes the pages do not keep; Error(kInput) for an
  // arm whose file is not for this model. For Request::load_kv: Error(kInput) for a file that is
  // none, or of another model or other pages; Error(kUsage) for an arm that prunes or that needs
  // what a file does not hold, and for what only a prompt that is read can give. For save_kv:
  // Error(kResource) if its folder cannot be written to.
  RequestId Submit(Request request);

  // Ends a request at the next quantum; what it has generated is kept. Unknown ids are ignored.
  void Cancel(RequestId id);

  // One step. False if there was nothing to do.
  bool Step();

  // The same, but decoding sequences wait: with it a batch is brought to one depth, each sequence
  // to its first token, before all decode together (benchmarks). False also if no waiting sequence
  // can be admitted before another one ends.
  bool StepPrefill();

  // The result of a finished request, once.
  std::optional<RequestResult> TakeResult(RequestId id);

  // Submit, then Step until it is finished.
  RequestResult Run(Request request);

  int64_t context_tokens() const;
  int64_t kv_bytes_per_token() const;  // of the global layers: local ones stop growing
  int64_t pool_bytes() const;
  int64_t active_requests() const;

  // Drops all resident prefixes and parked prompts (benchmarks).
  void ClearPrefixes();
  // Pool, sequences and prefix cache agree. CHECKs otherwise.
  void CheckInvariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
