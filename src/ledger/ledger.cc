#include "ledger/ledger.h"

#include <utility>

namespace winnow {

nlohmann::ordered_json ToJson(const PhaseLedger& phase) {
  nlohmann::ordered_json seconds;
  for (const StageSeconds::Stage& stage : StageSeconds::kStages) {
    seconds[stage.name] = phase.seconds.*stage.seconds;
  }
  return {{"tokens", phase.tokens},
          {"kv_tokens_read", phase.attention.tokens_read},
          {"kv_tokens_resident", phase.attention.tokens_resident},
          {"bytes_read", phase.attention.bytes_read},
          {"bytes_dense", phase.attention.bytes_dense},
          {"seconds", std::move(seconds)}};
}

}  // namespace winnow
