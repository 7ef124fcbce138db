#include "policy/auto_arm.h"

#include <fmt/format.h>

#include "policy/arm.h"

namespace winnow {

PlaneSet AutoArm::planes(int64_t context_tokens) const {
  return MayBeSparse(context_tokens) ? ArmPlanes({arm}) : PlaneSet{};
}

AutoArm::Choice AutoArm::For(int64_t prompt_tokens) const {
  if (arm == "dense") return {"dense", source};
  if (break_even_tokens == kNeverPays) {
    return {"dense", fmt::format("{} does not pay on this machine", source)};
  }
  if (prompt_tokens < break_even_tokens) {
    return {"dense", fmt::format("a prompt of {} tokens: {} pays from {} on this machine",
                                 prompt_tokens, source, break_even_tokens)};
  }
  return {arm,
          fmt::format("{}, which pays from {} tokens on this machine", source, break_even_tokens)};
}

}  // namespace winnow
