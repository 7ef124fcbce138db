#include "text/utf8.h"

#include "core/check.h"
#include "core/error.h"
#include "text/document.h"
#include "text/tokenizer.h"

namespace winnow {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// How a character that begins with `lead` goes on: table 3-7 of the Unicode standard. Only the
// second byte has a range of its own (it excludes overlong forms, surrogates and what lies above
// U+10FFFF).
struct LeadByte {
  int length = 0;  // 0: not a lead byte
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

LeadByte Lead(unsigned char lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2) return {0};
  if (lead < 0xE0) return {2};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// Moves what can be decided from the front of `bytes` to the result; with `at_end` that is all of
// it.
std::string TakeDecided(std::string* bytes, bool at_end) {
  std::string result;
  std::string_view rest = *bytes;
  while (!rest.empty()) {
    const Utf8Char next = NextUtf8Char(rest);
    if (next.state == Utf8State::kIncomplete && !at_end) break;
    result += next.state == Utf8State::kValid ? rest.substr(0, next.length) : kReplacement;
    rest.remove_prefix(next.length);
  }
  bytes->erase(0, bytes->size() - rest.size());
  return result;
}

}  // namespace

Utf8Char NextUtf8Char(std::string_view text) {
  WINNOW_CHECK(!text.empty());
  const LeadByte lead = Lead(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return {Utf8State::kInvalid, 1};
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8State::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char min = i == 1 ? lead.second_min : 0x80;
    const unsigned char max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8State::kInvalid, i};
  }
  return {Utf8State::kValid, lead.length};
}

void CheckUtf8(std::string_view text, std::string_view what) {
  if (const int64_t offset = FirstInvalidUtf8(text); offset >= 0) {
    Throw(ErrorKind::kInput, "{} is not UTF-8 text (byte 0x{:02x} at offset {})", what,
          static_cast<unsigned char>(text[offset]), offset);
  }
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string bytes(text);
  return TakeDecided(&bytes, /*at_end=*/true);
}

int64_t FirstInvalidUtf8(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const Utf8Char next = NextUtf8Char(text.substr(offset));
    if (next.state != Utf8State::kValid) return static_cast<int64_t>(offset);
    offset += next.length;
  }
  return -1;
}

std::string Utf8Assembler::Push(std::string_view bytes) {
  pending_ += bytes;
  return TakeDecided(&pending_, /*at_end=*/false);
}

std::string Utf8Assembler::Flush() { return TakeDecided(&pending_, /*at_end=*/true); }

}  // namespace winnow
