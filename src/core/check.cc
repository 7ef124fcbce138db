#include "core/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace winnow {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  fmt::print(stderr, "{}:{}: broken invariant: {}{}{}\n", file, line, condition,
             message.empty() ? "" : ": ", message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace winnow
