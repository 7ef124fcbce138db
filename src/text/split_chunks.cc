#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "text/prompt.h"
#include "text/utf8.h"

namespace winnow {
namespace {

// How good a place is for a cut, best last.
enum class Cut : uint8_t { kInsideCharacter, kCharacter, kWord, kLine, kSentence, kParagraph };

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool IsOneOf(std::string_view character, std::initializer_list<std::string_view> set) {
  return std::find(set.begin(), set.end(), character) != set.end();
}

// Follows a text character by character and rates the place after what it has seen.
class CutRater {
 public:
  void See(std::string_view character) {
    if (IsSpace(character[0])) {
      after_space_ = true;
      after_line_ = character[0] == '\n';
      newlines_ += after_line_ ? 1 : 0;
      return;
    }
    after_space_ = after_line_ = false;
    newlines_ = 0;
    if (IsOneOf(character, {"。", "！", "？"})) {
      sentence_ended_ = needs_no_space_ = true;
    } else if (IsOneOf(character, {".", "!", "?"})) {
      sentence_ended_ = true;
      needs_no_space_ = false;
    } else if (!IsOneOf(character, {"\"", "'", ")", "]", "”", "’", "»", "」", "』", "）"})) {
      sentence_ended_ = needs_no_space_ =
          false;  // a closing quote or bracket keeps the sentence's end
    }
  }

  Cut Rate(char next) const {
    if (newlines_ >= 2 && next != '\n' && next != '\r') return Cut::kParagraph;
    const bool at_space = after_space_ || IsSpace(next);
    if (sentence_ended_ && (at_space || needs_no_space_)) return Cut::kSentence;
    if (after_line_) return Cut::kLine;
    return at_space ? Cut::kWord : Cut::kCharacter;
  }

 private:
  bool after_space_ = false;
  bool after_line_ = false;
  bool sentence_ended_ = false;
  bool needs_no_space_ = false;
  int64_t newlines_ = 0;  // of the run of white space that ends here
};

// [bytes + 1]: the rating of a cut before each byte; the text's two ends are paragraph ends.
std::vector<Cut> RateCuts(std::string_view text) {
  std::vector<Cut> cuts(text.size() + 1, Cut::kInsideCharacter);
  CutRater rater;
  size_t offset = 0;
  while (offset < text.size()) {
    cuts[offset] = rater.Rate(text[offset]);
    const int length = NextUtf8Char(text.substr(offset)).length;
    rater.See(text.substr(offset, length));
    offset += length;
  }
  cuts.front() = cuts.back() = Cut::kParagraph;
  return cuts;
}

// The best of the places begin + 1 .. end for a cut, `rating` telling how good each is. Among
// equals the last wins; the first half is looked at only rather than cutting a character apart.
template <typename Rating>
int64_t ChooseCut(int64_t begin, int64_t end, const Rating& rating) {
  const int64_t half = begin + (end - begin) / 2;
  int64_t best = end;
  for (int64_t place = end - 1; place > half; --place) {
    if (rating(place) > rating(best)) best = place;
  }
  for (int64_t place = half; place > begin && rating(best) == Cut::kInsideCharacter; --place) {
    if (rating(place) > rating(best)) best = place;
  }
  return best;
}

// Byte offsets [tokens + 1] of the tokens in `text`, if their pieces add up to it. The space that
// some vocabularies put in front of a text is given no byte.
std::optional<std::vector<int64_t>> TokenOffsets(const Tokenizer& tokenizer, std::string_view text,
                                                 const std::vector<TokenId>& tokens) {
  std::vector<int64_t> offsets = {0};
  std::string decoded;
  for (const TokenId token : tokens) {
    decoded += tokenizer.Piece(token);
    offsets.push_back(static_cast<int64_t>(decoded.size()));
  }
  if (decoded == text) return offsets;
  if (decoded.empty() || decoded[0] != ' ' || std::string_view{decoded}.substr(1) != text) {
    return std::nullopt;
  }
  for (int64_t& offset : offsets) offset = std::max<int64_t>(offset - 1, 0);
  return offsets;
}

std::vector<Chunk> CutTokens(const std::vector<int64_t>& offsets, const std::vector<Cut>& cuts,
                             int64_t limit) {
  const auto rating = [&](int64_t token) { return cuts[offsets[token]]; };
  const auto n_tokens = static_cast<int64_t>(offsets.size()) - 1;
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < n_tokens;) {
    const int64_t end =
        n_tokens - begin <= limit ? n_tokens : ChooseCut(begin, begin + limit, rating);
    chunks.push_back({begin, end, offsets[begin], offsets[end]});
    begin = end;
  }
  return chunks;
}

// For vocabularies that normalise text, so that tokens have no exact place in it: pieces of text
// are tokenised on their own and packed into chunks.
class PieceSplitter {
 public:
  PieceSplitter(const Tokenizer& tokenizer, std::string_view text, int64_t limit)
      : tokenizer_(tokenizer), text_(text), cuts_(RateCuts(text)), limit_(limit) {}

  ChunkedText Split() && {
    const auto n_bytes = static_cast<int64_t>(text_.size());
    for (int64_t begin = 0; begin < n_bytes;) {
      int64_t end = begin + 1;
      while (cuts_[end] < Cut::kLine) ++end;
      AddPiece(begin, end);
      begin = end;
    }
    if (result_.tokens.empty()) result_.chunks.clear();
    return std::move(result_);
  }

 private:
  // A cut somewhere near the middle, so that halving a long line stays cheap.
  int64_t Middle(int64_t begin, int64_t end) const {
    const auto rating = [&](int64_t byte) { return cuts_[byte]; };
    const int64_t middle = ChooseCut(begin, begin + (end - begin) * 3 / 4, rating);
    return cuts_[middle] == Cut::kInsideCharacter ? ChooseCut(begin, end - 1, rating) : middle;
  }

  void AddPiece(int64_t begin, int64_t end) {
    const std::vector<TokenId> tokens =
        tokenizer_.Encode(text_.substr(begin, end - begin), false, /*parse_special=*/false);
    const auto n = static_cast<int64_t>(tokens.size());
    if (n > limit_) {
      const int64_t middle = Middle(begin, end);
      if (middle > begin && cuts_[middle] != Cut::kInsideCharacter) {
        AddPiece(begin, middle);
        return AddPiece(middle, end);
      }
    }
    std::vector<Chunk>& chunks = result_.chunks;
    // A chunk still without tokens (its text so far has none) takes whatever comes.
    const int64_t held = chunks.empty() ? 0 : chunks.back().end - chunks.back().begin;
    const bool joins = !chunks.empty() && (held == 0 || held + n <= limit_);
    if (!joins) {
      const auto at = static_cast<int64_t>(result_.tokens.size());
      chunks.push_back({at, at, begin, begin});
    }
    // One character of more tokens than a chunk may have: its later chunks are given no bytes.
    chunks.back().source_end = end;
    for (const TokenId token : tokens) {
      if (chunks.back().end - chunks.back().begin == limit_) {
        chunks.push_back({chunks.back().end, chunks.back().end, end, end});
      }
      result_.tokens.push_back(token);
      ++chunks.back().end;
    }
  }

  const Tokenizer& tokenizer_;
  std::string_view text_;
  std::vector<Cut> cuts_;
  int64_t limit_;
  ChunkedText result_;
};

}  // namespace

ChunkedText SplitIntoChunks(const Tokenizer& tokenizer, const std::string& text, int chunk_tokens) {
  if (chunk_tokens < 1) {
    Throw(ErrorKind::kUsage, "a chunk must have at least 1 token, not {}", chunk_tokens);
  }
  ChunkedText result;
  result.tokens = tokenizer.Encode(text, /*add_special=*/false, /*parse_special=*/false);
  if (const auto offsets = TokenOffsets(tokenizer, text, result.tokens)) {
    result.chunks = CutTokens(*offsets, RateCuts(text), chunk_tokens);
    return result;
  }
  return PieceSplitter(tokenizer, text, chunk_tokens).Split();
}

}  // namespace winnow
