// Standard output and stderr that survive closed pipes, JSON that survives bad UTF-8, and numbers
// for people.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace winnow {

// Exit code when the reader of standard output went away: what a shell reports for `cat` in that
// place.
inline constexpr int kExitClosedPipe = 128 + 13;

// Unbuffered writes to file descriptor 1. A failure is remembered, not thrown, so that it may be
// used from within Engine::Step.
class Output {
 public:
  // Writes all of `text`; does nothing once a write has failed.
  void Write(std::string_view text);
  bool failed() const { return error_ != 0; }
  // Returns `code` if every write succeeded and kExitClosedPipe if the reader went away. Throws
  // Error(kResource) for any other failure (a full disk).
  int ExitCode(int code) const;

 private:
  int error_ = 0;  // errno of the first write that failed
};

// One line, or indented over several; without a line end. Invalid UTF-8 is replaced by U+FFFD,
// never thrown upon.
std::string DumpJson(const nlohmann::ordered_json& json, bool indent);

// What an error is called in JSON, and the process's exit code.
struct ExitKind {
  std::string_view name;
  int exit_code;
};
ExitKind DescribeError(std::optional<ErrorKind> kind);  // none: an internal error

// {"schema": "winnow.error/1", "error": {"kind", "message"}}
nlohmann::ordered_json ErrorJson(std::string_view kind, std::string_view message);

std::string FormatCount(int64_t n);         // "6,812"
std::string FormatSeconds(double seconds);  // "0.42 s", "73 s"

// `text` as a terminal may show it: control characters (C0, DEL, C1), the separators and overrides
// of Unicode that move what follows (U+2028, U+2029, U+200E, U+200F, U+202A to U+202E, U+2066 to
// U+2069) and bytes that are not UTF-8 become "\\n", "\\x1b", "\\u009b"; everything else stays. For
// names and messages from outside: a file's name must not command the terminal. Only for people:
// JSON keeps the text.
std::string EscapeControls(std::string_view text);

// Writes `text` to stderr as it is: what the program itself draws with. A failure (stderr closed,
// its reader gone) is ignored.
void WriteError(std::string_view text);

// Writes text of several lines to stderr, each through EscapeControls.
void WriteErrorLines(std::string_view text);

// A line on stderr, after "winnow: ", through EscapeControls.
void Warn(std::string_view message);

}  // namespace winnow
