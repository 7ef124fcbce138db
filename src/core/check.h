// CHECK: a broken invariant of the program itself ends the process with its place and values.
// Never for user input (that is core/error.h); always on, also in release builds.
#pragma once

#include <fmt/format.h>

namespace winnow {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);
}  // namespace winnow

// WINNOW_CHECK(cond) or WINNOW_CHECK(cond, "format {}", value...)
#define WINNOW_CHECK(condition, ...)                                                        \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::winnow::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
