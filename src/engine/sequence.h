// One admitted or waiting request and everything the engine keeps for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/tensor_view.h"
#include "engine/handover.h"
#include "engine/pruning.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/text_stream.h"
#include "kv/sequence_kv.h"
#include "policy/arm.h"

namespace winnow {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Sequence {
  Sequence(RequestId id_in, Request request_in, Arm arm_in, SequenceKv kv_in, int n_vocab,
           int max_tokens)
      : id(id_in),
        request(std::move(request_in)),
        arm(std::move(arm_in)),
        kv(std::move(kv_in)),
        sampler(request.sampling, n_vocab, max_tokens, request.tokens),
        stream(request.stop) {}

  int64_t n_prompt() const { return static_cast<int64_t>(request.tokens.size()); }
  // The first row that a layer is still to be given.
  int64_t FirstRow(int layer) const { return layer < resume_layer ? n_resumed : n_reused; }
  // Positions of the current layer's rows, which are the tokens' indices in the prompt.
  std::span<const int32_t> row_positions() const {
    return rows.empty() ? std::span(positions).first(n_prompt()) : std::span(rows);
  }
  // Tokens whose keys and values are stored once a step is over: all but the last one drawn.
  int64_t n_stored() const { return n_prompt() + static_cast<int64_t>(generated.size()) - 1; }
  TokenId TokenAt(int64_t i) const {
    return i < n_prompt() ? request.tokens[i] : generated[i - n_prompt()];
  }

  RequestId id;
  Request request;
  Arm arm;
  std::string arm_reason;                // of `auto`: why it stands for this arm
  DecodePolicy* policy = nullptr;        // null: dense
  const EnginePruner* pruner = nullptr;  // null: nothing is pruned
  // Tokens from here on passed layers below under the arm, not densely.
  int64_t sparse_from = std::numeric_limits<int64_t>::max();
  SequenceKv kv;
  std::unique_ptr<ResidualMemory> memory;  // what the policy's residual keeps; may be null
  Sampler sampler;
  TextStream stream;
  SequenceStatus status;
  bool prefill_started = false;
  std::vector<int32_t> positions;    // of the prompt and of the generated tokens that are stored
  std::vector<Hash128> page_hashes;  // of the full pages of tokens known so far
  int64_t n_reused = 0;              // prompt tokens found in resident pages, at every layer
  // Layers [0, resume_layer) hold the first `n_resumed` tokens, whose hidden states above them were
  // parked.
  int resume_layer = 0;
  int64_t n_resumed = 0;
  // Tokens that pass the layers from here on, ascending; empty: all. Row i of a layer is token
  // rows[i], and the first n_reused rows are the first n_reused tokens.
  std::vector<int32_t> rows;
  int64_t rows_done = 0;                     // that passed a layer, all layers together
  AlignedBuffer<float> hidden;               // [status.n_prompt - n_reused, E] during prefill
  std::unique_ptr<SequencePruning> pruning;  // null: nothing is pruned
  // Tokens before this one lie where a dense prefill puts them, and as it leaves them.
  int64_t n_whole = std::numeric_limits<int64_t>::max();
  std::optional<HandoverNote> handover;  // of the file that takes the prompt's place
  std::optional<KvTransfer> kv_transfer;
  std::vector<TokenId> generated;
  RequestLedger ledger;
  std::string failure;  // why it failed
  std::optional<ErrorKind> failure_kind;

  Clock::time_point submitted = Clock::now();
  Clock::time_point admitted;
  Clock::time_point first_token;
  Clock::time_point last_token;
};

}  // namespace winnow
