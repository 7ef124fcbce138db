// The one exception of the program: bad input or a bad environment, told to the person who caused
// it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace winnow {

enum class ErrorKind {
  kUsage,      // flags, arms or parameters that make no sense: exit code 2
  kInput,      // files, documents or prompts that cannot be used: exit code 3
  kResource,   // memory, context or threads that are not there: exit code 4
  kCancelled,  // the user stopped it: exit code 130
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <typename... Args>
[[noreturn]] void Throw(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace winnow
