#include "eval/book.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"

namespace winnow {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f";

// Where sentences begin: at the first letter behind a full stop and white space, and at the first
// of the text.
std::vector<size_t> SentenceStarts(std::string_view text) {
  std::vector<size_t> starts;
  size_t at = text.find_first_not_of(kWhiteSpace);
  while (at != std::string_view::npos) {
    starts.push_back(at);
    size_t stop = text.find('.', at);
    while (stop != std::string_view::npos && stop + 1 < text.size() &&
           kWhiteSpace.find(text[stop + 1]) == std::string_view::npos) {
      stop = text.find('.', stop + 1);
    }
    if (stop == std::string_view::npos) break;
    at = text.find_first_not_of(kWhiteSpace, stop + 1);
  }
  return starts;
}

}  // namespace

Book::Book(const std::vector<Document>& documents) {
  for (const Document& document : documents) {
    if (!text_.empty()) text_ += "\n\n";
    text_ += document.text;
  }
  std::erase(text_, '\r');
  sentences_ = SentenceStarts(text_);
}

std::string_view Book::Sentences(int64_t begin, int64_t n) const {
  WINNOW_CHECK(begin >= 0 && n >= 0 && begin + n <= n_sentences(), "sentences {} + {} of {}", begin,
               n, n_sentences());
  if (n == 0) return {};
  const size_t first = sentences_[begin];
  const size_t end = begin + n == n_sentences() ? text_.size() : sentences_[begin + n];
  const std::string_view text = std::string_view{text_}.substr(first, end - first);
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

int64_t Book::DrawStart(const Tokenizer& tokenizer, int64_t n_tokens, Rng* rng) const {
  // A part of the text tells how long its tokens are; passages differ, so a fifth is left to spare.
  constexpr size_t kProbeBytes = 1 << 16;
  const std::string_view probe = std::string_view{text_}.substr(0, kProbeBytes);
  const auto probe_tokens = tokenizer.Encode(probe, /*add_special=*/false, /*parse_special=*/false);
  const double bytes_a_token = static_cast<double>(probe.size()) /
                               static_cast<double>(std::max<size_t>(probe_tokens.size(), 1));
  const auto needed = static_cast<size_t>(1.2 * bytes_a_token * static_cast<double>(n_tokens));
  const auto usable = std::partition_point(sentences_.begin(), sentences_.end(), [&](size_t start) {
    return start + needed <= text_.size();
  });
  if (usable == sentences_.begin()) {
    Throw(ErrorKind::kInput,
          "the text holds about {:.0f} tokens: too short for prompts of {} tokens, which begin at "
          "a random sentence (give more with --text)",
          static_cast<double>(text_.size()) / bytes_a_token, n_tokens);
  }
  return static_cast<int64_t>(rng->Below(usable - sentences_.begin()));
}

}  // namespace winnow
