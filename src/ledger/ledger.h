// What a request read, how sure that was, and how long each stage took, by step and in all.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/account.h"

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

struct RequestLedger {
  PhaseLedger prefill;
  PhaseLedger decode;
};

enum class LedgerDetail : uint8_t {
  kSummary,
  kFull,  // also by layer and KV head, and by step
};

// {"tokens", "kv_tokens_read", "kv_tokens_resident", "bytes_read", "bytes_dense", "seconds":
// {stage: s}}, and "sparse" where layers did not read everything (docs/json.md)
nlohmann::ordered_json ToJson(const PhaseLedger& phase,
                              LedgerDetail detail = LedgerDetail::kSummary);

}  // namespace winnow
