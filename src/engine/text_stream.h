// Turns generated tokens into text that can be shown: whole UTF-8 characters, and nothing that may
// still become a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace winnow {

class TextStream {
 public:
  // Empty stop strings are ignored.
  explicit TextStream(std::vector<std::string> stop);

  // Takes the bytes of one token; returns what can be shown now.
  std::string Push(std::string_view bytes);
  // No more tokens: returns what was held back.
  std::string Finish();

  bool stopped() const { return stopped_; }          // a stop string appeared
  const std::string& text() const { return text_; }  // everything returned so far

 private:
  std::string Release(bool all);

  std::vector<std::string> stop_;
  Utf8Assembler assembler_;
  std::string held_;
  std::string text_;
  bool stopped_ = false;
};

}  // namespace winnow
