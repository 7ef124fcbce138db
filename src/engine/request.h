// What a caller asks of the engine, what it is told meanwhile, and what it gets back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention_probe.h"
#include "core/error.h"
#include "ledger/ledger.h"
#include "policy/prefill/prune_problem.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace winnow {

// llama.cpp's sampler chain: penalties, then top-k, top-p, min-p, temperature, draw.
struct SamplingParams {
  float temperature = 0.0f;  // <= 0: greedy, the other four are then ignored
  int top_k = 40;            // <= 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off
  uint32_t seed = 0;
  float repeat_penalty = 1.0f;  // 1: off; penalties also apply to greedy sampling
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  int penalty_last_n = 64;  // tokens that penalties look back on; -1: all

  // Throws Error(kUsage) that names the parameter and its range.
  void Validate() const;
};

enum class FinishReason : uint8_t {
  kEndToken,    // the model ended its turn
  kStopString,  // a stop string appeared (it is not part of the text)
  kMaxTokens,
  kContextFull,
  kCancelled,
  kFailed,  // RequestResult::error says why
};
std::string_view FinishReasonName(FinishReason reason);  // "stop", "stop_string", "length", ...

struct PrefillProgress {
  int64_t tokens_done = 0;   // in units of whole prompt tokens through all layers
  int64_t tokens_total = 0;  // without reused ones
  int64_t tokens_reused = 0;
  double seconds = 0;
};

struct Request {
  std::vector<TokenId> tokens;  // the prompt; at least one
  // What the prompt consists of, as Prompt::spans: an arm that prunes drops chunks of these. Empty:
  // nothing may be dropped.
  std::vector<Span> spans;
  int64_t max_new_tokens = 256;
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool ignore_end_tokens = false;  // benchmarks
  // The first generated tokens are these instead of drawn ones (teacher forcing): each passes its
  // own decode step, and on_logits sees the logits that it would have been drawn from.
  std::vector<TokenId> forced_tokens;
  std::string arm = "auto";
  bool keep_tables = false;  // constraint tables of pruning in the record
  bool keep_all = false;     // nothing is dropped, whatever the arm says: what was comes back
  // A file (kv/kv_file.h) that hands the prompt's pages, pruned or not, to another process: the
  // request writes them and ends with its first token, whatever max_new_tokens says.
  std::string save_kv;
  // A file of such a request to go on with in place of a prompt: `tokens` is then empty, and so are
  // spans and forced_tokens. The answer begins with the file's token, which is not drawn again
  // (on_logits begins with the second) but moves the seed on; with the same sampling parameters and
  // arm it is the one that the request would have given without a file between.
  std::string load_kv;

  // All are called from within Engine::Step, on its thread; each may be empty. They may call
  // Engine::Cancel and nothing else of the engine; one that throws fails its request.
  std::function<void(const PrefillProgress&)> on_prefill;
  std::function<void(std::string_view)> on_text;  // whole UTF-8 characters, stop strings held back
  // What the observers look at in each monitored layer of an arm that prunes (layers from 1),
  // before it is decided upon.
  std::function<void(int layer, const PruneProblem&, const LayerObservation&)> on_observation;
  // Logits [V] at prompt position `position`, for every position in order; switches prefix reuse
  // off.
  std::function<void(int64_t position, std::span<const float> logits)> on_prompt_logits;
  // Logits [V] from which generated token `index` was drawn.
  std::function<void(int64_t index, std::span<const float> logits)> on_logits;
  // Watches attention, unless null; outlives the request. One that throws in a decode step fails
  // the newest request of the step's batch: watch requests that run alone.
  const AttentionProbe* probe = nullptr;

  // Prefix reuse is off then: every prompt token is computed.
  bool watches_prompt() const { return on_prompt_logits || (probe != nullptr && probe->on_prompt); }
};

using RequestId = int64_t;

// Pages that a request wrote to a file, or took from one. Formulas are EntroPrefill's payload, of
// what lies in pages: 2·e·d·b·G·Σ U_l, without the scales of q8_0.
struct KvTransfer {
  std::string path;
  int64_t pages = 0;          // of one layer with all its KV heads
  int64_t payload_bytes = 0;  // keys and values
  int64_t scale_bytes = 0;    // of the payload
  int64_t metadata_bytes = 0;
  int64_t formula_bytes = 0;   // for what was pruned, and at which layer
  int64_t unpruned_bytes = 0;  // for the same prompt with nothing dropped
  double seconds = 0;          // writing the file, or reading it and updating planes
};

struct RequestResult {
  RequestId id = 0;
  FinishReason finish_reason = FinishReason::kFailed;
  std::string error;                    // of kFailed, and its kind:
  std::optional<ErrorKind> error_kind;  // none: an internal error
  std::string arm_resolved;             // what ran, with every parameter
  std::string arm_reason;               // why `auto` stood for it; "" for any other arm
  std::string text;
  std::vector<TokenId> tokens;  // generated, an end token included
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt, found in resident pages
  double queue_seconds = 0;   // before admission
  double prefill_seconds = 0;
  double ttft_seconds = 0;    // from submission to the first token
  double decode_seconds = 0;  // from the first token to the last
  // Of pages this request held at its end, and what its residual estimator kept beside them.
  int64_t kv_bytes = 0;
  RequestLedger ledger;
  std::optional<KvTransfer> kv_transfer;  // of save_kv or load_kv

  // Seconds a token after the first one; 0 if there are fewer than two.
  double SecondsPerToken() const {
    return tokens.size() < 2 ? 0 : decode_seconds / static_cast<double>(tokens.size() - 1);
  }
};

}  // namespace winnow
