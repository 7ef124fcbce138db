#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace winnow {

void Output::Write(std::string_view text) {
  while (!text.empty() && error_ == 0) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
}

int Output::ExitCode(int code) const {
  if (error_ == 0) return code;
  if (error_ == EPIPE) return kExitClosedPipe;
  Throw(ErrorKind::kResource, "cannot write to standard output: {}", std::strerror(error_));
}

std::string DumpJson(const nlohmann::ordered_json& json, bool indent) {
  return json.dump(indent ? 2 : -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ExitKind DescribeError(std::optional<ErrorKind> kind) {
  if (!kind.has_value()) return {"internal", 1};
  switch (*kind) {
    case ErrorKind::kUsage:
      return {"usage", 2};
    case ErrorKind::kInput:
      return {"input", 3};
    case ErrorKind::kResource:
      return {"resource", 4};
    case ErrorKind::kCancelled:
      return {"cancelled", 130};
  }
  return {"internal", 1};
}

nlohmann::ordered_json ErrorJson(std::string_view kind, std::string_view message) {
  return {{"schema", "winnow.error/1"}, {"error", {{"kind", kind}, {"message", message}}}};
}

std::string FormatCount(int64_t n) {
  std::string digits = std::to_string(n);
  const size_t first = n < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit > 0 && value < 10 ? 1 : 0, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : seconds < 100 ? 1 : 0);
}

void WriteError(std::string_view text) {
  // fmt::print would throw where stderr is closed; there is nobody left to tell.
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void Warn(std::string_view message) { WriteError(fmt::format("winnow: {}\n", message)); }

}  // namespace winnow
