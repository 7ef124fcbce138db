#include "ledger/ledger.h"

namespace winnow {

nlohmann::ordered_json ToJson(const PhaseLedger& phase) {
  const StageSeconds& s = phase.seconds;
  return {{"tokens", phase.tokens},
          {"kv_tokens_read", phase.attention.tokens_read},
          {"kv_tokens_resident", phase.attention.tokens_resident},
          {"bytes_read", phase.attention.bytes_read},
          {"bytes_dense", phase.attention.bytes_dense},
          {"seconds",
           {{"embed", s.embed},
            {"attention_input", s.attention_input},
            {"kv_append", s.kv_append},
            {"attention", s.attention},
            {"attention_output", s.attention_output},
            {"logits", s.logits},
            {"sampling", s.sampling}}}};
}

}  // namespace winnow
