// Book text cut into sentences: the haystack of needles, and what books continue with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"
#include "text/document.h"
#include "text/tokenizer.h"

namespace winnow {

class Book {
 public:
  Book() = default;
  // The texts one after another, carriage returns left out.
  explicit Book(const std::vector<Document>& documents);

  bool empty() const { return sentences_.empty(); }
  int64_t n_sentences() const { return static_cast<int64_t>(sentences_.size()); }
  // Sentences [begin, begin + n), with the white space behind all but the last. They must exist.
  std::string_view Sentences(int64_t begin, int64_t n) const;

  // A random sentence that about `n_tokens` tokens of text follow. Throws Error(kInput) if there is
  // none: the text is too short.
  int64_t DrawStart(const Tokenizer& tokenizer, int64_t n_tokens, Rng* rng) const;

 private:
  std::string text_;
  std::vector<size_t> sentences_;  // where each begins
};

}  // namespace winnow
