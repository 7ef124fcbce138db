#include "bench/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"
#include "core/rng.h"
#include "text/prompt.h"

namespace winnow {
namespace {

constexpr std::array<std::string_view, 12> kKeys = {
    "quiet-lantern",  "amber-harbour", "distant-orchard", "copper-violin",
    "frozen-meadow",  "silver-anchor", "hollow-cedar",    "crimson-ladder",
    "patient-falcon", "marble-kettle", "wandering-brook", "velvet-compass"};

// Where sentences of `text` begin: behind a full stop and a space or line end.
std::vector<size_t> SentenceStarts(std::string_view text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    if (text[i] == '.' && (text[i + 1] == ' ' || text[i + 1] == '\n')) starts.push_back(i + 2);
  }
  return starts;
}

// The longest run of whole sentences from `begin` on that takes at most `n_tokens` tokens.
std::string Stretch(const Tokenizer& tokenizer, std::string_view book, size_t begin,
                    int64_t n_tokens) {
  // No token of English prose is longer than 16 bytes on average.
  const std::string_view candidate = book.substr(begin, static_cast<size_t>(n_tokens) * 16);
  std::vector<TokenId> tokens =
      tokenizer.Encode(candidate, /*add_special=*/false, /*parse_special=*/false);
  if (static_cast<int64_t>(tokens.size()) < n_tokens) {
    Throw(ErrorKind::kInput, "the book ends before a prompt of {} tokens does", n_tokens);
  }
  tokens.resize(n_tokens);
  std::string text = tokenizer.Decode(tokens);
  const std::vector<size_t> starts = SentenceStarts(text);
  if (starts.empty()) Throw(ErrorKind::kInput, "no sentence ends in {} tokens", n_tokens);
  text.resize(starts.back() - 1);
  return text;
}

size_t DrawStart(const Tokenizer& tokenizer, std::string_view book, int64_t n_tokens, Rng* rng) {
  // The last sixth of what is needed is left to spare: passages differ in bytes a token.
  const auto all = tokenizer.Encode(book, /*add_special=*/false, /*parse_special=*/false).size();
  const double bytes_a_token = static_cast<double>(book.size()) / static_cast<double>(all);
  const auto needed = static_cast<size_t>(1.2 * bytes_a_token * static_cast<double>(n_tokens));
  std::vector<size_t> starts = SentenceStarts(book);
  std::erase_if(starts, [&](size_t start) { return start + needed > book.size(); });
  if (starts.empty()) {
    Throw(ErrorKind::kInput, "a book of {} tokens is too short for prompts of {}", all, n_tokens);
  }
  return starts[rng->Below(starts.size())];
}

bool Contains(const std::string& text, const std::string& value) {
  return text.find(value) != std::string::npos;
}

}  // namespace

NeedlePrompt MakeNeedlePrompt(const Tokenizer& tokenizer, const std::string& book, int64_t n_tokens,
                              uint64_t seed) {
  // Template, file name, question, needle and the answer's first words.
  constexpr int64_t kFrameTokens = 130;
  if (n_tokens < 2 * kFrameTokens) {
    Throw(ErrorKind::kInput, "a needle needs prompts of {} tokens or more", 2 * kFrameTokens);
  }
  Rng rng(seed);
  NeedlePrompt needle;
  needle.value = fmt::format("{}", 1'000'000 + rng.Below(9'000'000));
  const std::string_view key = kKeys[rng.Below(kKeys.size())];
  const int64_t n_text = n_tokens - kFrameTokens;
  std::string text = Stretch(tokenizer, book, DrawStart(tokenizer, book, n_text, &rng), n_text);
  const std::vector<size_t> starts = SentenceStarts(text);
  if (starts.empty()) Throw(ErrorKind::kInput, "no place for a needle in {} tokens", n_tokens);
  text.insert(starts[rng.Below(starts.size())],
              fmt::format("The special magic number for {} is {}. ", key, needle.value));
  const Prompt prompt =
      BuildPrompt(tokenizer, {{.id = "book.txt", .text = std::move(text)}},
                  fmt::format("What is the special magic number for {}?", key), PromptOptions{});
  needle.tokens = prompt.tokens;
  const std::vector<TokenId> answer =
      tokenizer.Encode(fmt::format("The special magic number for {} is", key),
                       /*add_special=*/false, /*parse_special=*/false);
  needle.tokens.insert(needle.tokens.end(), answer.begin(), answer.end());
  return needle;
}

NeedleResult RunNeedle(const NeedlePrompt& prompt, const Tokenizer& tokenizer, Engine* engine,
                       PeerLlama* peer) {
  NeedleResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  result.value = prompt.value;

  Request request;
  request.tokens = prompt.tokens;
  request.max_new_tokens = kNeedleAnswerTokens;
  request.arm = "dense";
  const RequestResult ours = engine->Run(std::move(request));
  if (ours.finish_reason == FinishReason::kFailed) Throw(ErrorKind::kResource, "{}", ours.error);
  result.winnow_text = ours.text;

  peer->Clear();
  std::vector<TokenId> tokens = {peer->Prefill(0, prompt.tokens).next_token};
  const std::vector<TokenId> more = peer->Decode(tokens, kNeedleAnswerTokens - 1).tokens[0];
  tokens.insert(tokens.end(), more.begin(), more.end());
  const auto end = std::find_if(tokens.begin(), tokens.end(),
                                [&](TokenId token) { return tokenizer.IsEndOfGeneration(token); });
  result.peer_text = tokenizer.Decode({tokens.begin(), end});

  result.winnow_hit = Contains(result.winnow_text, prompt.value);
  result.peer_hit = Contains(result.peer_text, prompt.value);
  return result;
}

}  // namespace winnow
