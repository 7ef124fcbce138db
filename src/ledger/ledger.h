// What a request read and how long each stage took, added up over its steps and layers.
#pragma once

#include <nlohmann/json.hpp>

#include "core/account.h"

namespace winnow {

struct PhaseLedger {
  AttentionAccount attention;
  StageSeconds seconds;
  int64_t tokens = 0;  // that passed through this phase
};

struct RequestLedger {
  PhaseLedger prefill;
  PhaseLedger decode;
};

// {"tokens", "kv_tokens_read", "kv_tokens_resident", "bytes_read", "bytes_dense", "seconds":
// {stage: s}}, and "sparse" where layers did not read everything: counts, and masses summed over
// mass_heads query heads of layer-steps, which are estimates
nlohmann::ordered_json ToJson(const PhaseLedger& phase);

}  // namespace winnow
