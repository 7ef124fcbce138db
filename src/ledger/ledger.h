// What a request read, how sure that was, and how long each stage took, by step and in all.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/account.h"
#include "core/prefill_account.h"

namespace winnow {

// One step of one request: sums over its layers.
struct StepLedger {
  int64_t tokens_read = 0;
  int64_t tokens_resident = 0;
  int64_t mass_heads = 0;
  double mass_exact = 0;
  double mass_estimated = 0;
  double mass_dropped = 0;
  int64_t intervals = 0;
  double lo = 0;
  double hi = 0;
  int64_t fallbacks = 0;  // KV heads that read more than was asked for, or everything
};

struct PhaseLedger {
  AttentionAccount attention;
  StageSeconds seconds;
  int64_t tokens = 0;             // that passed through this phase
  std::vector<StepLedger> steps;  // of decode, those with sparse layers

  // Lets AddStep of `account` do without memory.
  void MakeRoomFor(const AttentionAccount& account);
  // One token passed.
  void AddStep(const AttentionAccount& account);
};

// What a policy that prunes decided, and what came of it.
struct PruneLedger {
  PrefillAccount policy;
  int applied_layer = 0;   // from 1: the last one that all tokens passed; 0: nothing was dropped
  int resumed_layers = 0;  // that had been computed when an earlier request parked its prompt,
  int64_t resumed_tokens = 0;  // for so many tokens
  int64_t parked_bytes = 0;    // hidden states that are kept, so that chunks can come back; 0: none
  int layers_compacted = 0;    // below, whose dropped tokens decode cannot read (pruned_kv=drop)
  int64_t rows_computed = 0;   // tokens times layers,
  int64_t rows_dense = 0;      // and without pruning and parking
  // Of the removal at the layer of acceptance, by query head, the mean over the observers of
  // ‖o − o_R‖ and of ‖o‖; empty: nothing was dropped.
  std::vector<double> output_change;
  std::vector<double> output_norm;
  PruneCostAccount cost;
};

struct RequestLedger {
  PhaseLedger prefill;
  PhaseLedger decode;
  std::shared_ptr<const PruneLedger> pruning;  // null: the arm does not prune
};

enum class LedgerDetail : uint8_t {
  kSummary,
  kFull,  // also by layer and KV head, and by step
};

// {"tokens", "kv_tokens_read", "kv_tokens_resident", "bytes_read", "bytes_dense", "seconds":
// {stage: s}}, and "sparse" where layers did not read everything (docs/json.md)
nlohmann::ordered_json ToJson(const PhaseLedger& phase,
                              LedgerDetail detail = LedgerDetail::kSummary);
// The record of EntroPrefill's Appendix C. The full one has constraint tables, prices and draws.
nlohmann::ordered_json ToJson(const PruneLedger& pruning,
                              LedgerDetail detail = LedgerDetail::kSummary);

}  // namespace winnow
