// UTF-8 one character at a time: what is valid, what is cut off, what can never become valid.
#pragma once

#include <string>
#include <string_view>

namespace winnow {

enum class Utf8State {
  kValid,
  kIncomplete,  // a valid beginning of a character whose rest is missing
  kInvalid,     // bytes that no continuation can make valid
};

struct Utf8Char {
  Utf8State state = Utf8State::kInvalid;
  // Bytes of the character; if it is not valid, of the part that one U+FFFD replaces (the "maximal
  // subpart" of the Unicode standard, section 3.9). At least 1.
  int length = 1;
};

// The character that begins at text[0]; `text` must not be empty.
Utf8Char NextUtf8Char(std::string_view text);

// Throws Error(kInput) "`what` is not UTF-8 text (byte …)" if `text` is not.
void CheckUtf8(std::string_view text, std::string_view what);

// `text` with every invalid part replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace winnow
