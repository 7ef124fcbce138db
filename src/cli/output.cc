#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "text/utf8.h"

namespace winnow {
namespace {

// Of a valid UTF-8 character.
char32_t CodePoint(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  char32_t code = byte(0) & (0x7FU >> character.size());
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3FU);
  return code;
}

bool MovesTheRest(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

std::string EscapeCodePoint(char32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  return code < 0x80 ? fmt::format("\\x{:02x}", static_cast<uint32_t>(code))
                     : fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
}

}  // namespace

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
  const std::string digits = fmt::format("{}", n);
  const size_t first = n < 0 ? 1 : 0;
  std::string count;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) count += ',';
    count += digits[i];
  }
  return count;
}

std::string FormatSeconds(double seconds) {
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : seconds < 100 ? 1 : 0);
}

std::string EscapeControls(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const Utf8Char next = NextUtf8Char(text);
    const std::string_view character = text.substr(0, next.length);
    text.remove_prefix(character.size());
    if (next.state != Utf8State::kValid) {
      for (const char byte : character) {
        escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    } else if (const char32_t code = CodePoint(character); MovesTheRest(code)) {
      escaped += EscapeCodePoint(code);
    } else {
      escaped += character;
    }
  }
  return escaped;
}

void WriteError(std::string_view text) {
  // fmt::print would throw where stderr is closed; there is nobody left to tell.
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void WriteErrorLines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines += EscapeControls(text.substr(0, end));
    if (end == std::string_view::npos) break;
    lines += '\n';
    text.remove_prefix(end + 1);
  }
  WriteError(lines);
}

void Warn(std::string_view message) {
  WriteError(fmt::format("winnow: {}\n", EscapeControls(message)));
}

}  // namespace winnow
