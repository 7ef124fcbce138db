// The text of the profiles that the program brings along: the files of src/policy/profiles, which
// the build copies into builtin_profiles.cc.
#pragma once

#include <span>
#include <string_view>

namespace winnow {

std::span<const std::string_view> BuiltinProfileTexts();

}  // namespace winnow
