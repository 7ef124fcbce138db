#include "core/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace winnow {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  const std::string text = fmt::format("{}:{}: broken invariant: {}{}{}\n", file, line, condition,
                                       message.empty() ? "" : ": ", message);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace winnow
