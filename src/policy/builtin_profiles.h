// The text of the profiles that the program brings along: the files of src/policy/profiles, which
// the build copies into builtin_profiles.cc.
#pragma once

#include <span>
#include <string_view>

namespace winnow {

std::span<const std::string_view> BuiltinProfileTexts();
// Those of profiles/prefill, which say how prompts are pruned.
std::span<const std::string_view> BuiltinPruneProfileTexts();

}  // namespace winnow
