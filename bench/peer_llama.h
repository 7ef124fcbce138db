// libllama on the same GGUF file in the same process: the peer that Winnow is measured and checked
// against, set up as its own users run it (llama-bench's defaults).
//
// Its threads and Winnow's would spin against each other on a small machine: during every call
// below Winnow's pool sleeps, and between calls the peer's does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/function_ref.h"
#include "core/parallel.h"

namespace winnow {

enum class PeerAttention : uint8_t {
  kAuto,   // flash attention where libllama thinks it fit
  kFlash,  // flash attention
  kPlain,  // scores, softmax and weighted sum as separate operators
};

struct PeerOptions {
  int64_t context_tokens = 0;  // of one sequence; libllama rounds it up to a multiple of 256
  int sequences = 1;
  PeerAttention attention = PeerAttention::kAuto;
  bool kv_unified = false;  // one KV buffer for all sequences instead of one each
  DType kv_dtype = DType::kF16;
};

// The weights and the threads, shared by any number of contexts.
class PeerModel {
 public:
  // Loads as libllama does by default (memory-mapped, weights repacked for the processor).
  // `sleeper` is put to sleep while the peer computes; it outlives the model, or is null.
  // Throws Error(kInput) if libllama refuses the file, Error(kUsage) for a bad number of threads.
  PeerModel(const std::string& gguf_path, int n_threads, ThreadPool* sleeper);
  ~PeerModel();
  PeerModel(const PeerModel&) = delete;
  PeerModel& operator=(const PeerModel&) = delete;

  int vocabulary() const;
  int64_t context_length() const;  // tokens the model was trained for
  int64_t weight_bytes() const;

 private:
  friend class PeerLlama;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct PeerPrefill {
  double seconds = 0;  // until the greedy choice of the next token is known
  int32_t next_token = 0;
};

struct PeerDecode {
  double seconds = 0;
  std::vector<std::vector<int32_t>> tokens;  // [sequence][step], greedy
};

// One context: KV memory for some sequences. Not thread-safe.
class PeerLlama {
 public:
  using LogitsFn = FunctionRef<void(int64_t position, std::span<const float> logits)>;

  // `model` outlives the context. Throws Error(kUsage) for bad options and Error(kResource) where
  // libllama cannot make the context (a quantised KV cache needs flash attention, for instance).
  PeerLlama(PeerModel* model, const PeerOptions& options);
  ~PeerLlama();
  PeerLlama(const PeerLlama&) = delete;
  PeerLlama& operator=(const PeerLlama&) = delete;

  // Forgets all sequences.
  void Clear();
  // Keeps the first `n_tokens` tokens of a sequence. False if the model's memory cannot be cut
  // there (sliding windows); the sequence is then empty.
  bool Rewind(int sequence, int64_t n_tokens);
  int64_t n_tokens(int sequence) const;

  // Appends `tokens` (at least one) to a sequence, in batches of 2,048 and micro-batches of 512.
  // Throws Error(kInput) if they do not fit the context or are not in the vocabulary.
  PeerPrefill Prefill(int sequence, std::span<const int32_t> tokens);
  // The same, and calls `on_logits` with the logits [V] of every position, in order.
  void PrefillWithLogits(int sequence, std::span<const int32_t> tokens, LogitsFn on_logits);

  // `steps` greedy steps of sequences 0 .. first.size() - 1 as one batch, each beginning with its
  // token of `first`. End tokens do not stop it.
  PeerDecode Decode(std::span<const int32_t> first, int64_t steps);

  // Bytes of KV memory, and of everything the context holds (KV, compute and output buffers).
  int64_t kv_bytes() const;
  int64_t total_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes `from` requantised as `type` ("Q4_0", "Q4_K_M", ...) to `to`, with llama.cpp's quantiser.
// Throws Error(kUsage) for a type it does not know and Error(kInput) if it fails.
void RequantizeGguf(const std::string& from, const std::string& to, std::string_view type,
                    int n_threads);

}  // namespace winnow
