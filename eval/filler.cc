#include "eval/filler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/check.h"
#include "core/error.h"

namespace winnow {
namespace {

constexpr std::array<std::string_view, 32> kAdjectives = {
    "amber",   "quiet",  "distant", "copper",    "frozen", "silver",  "hollow",  "crimson",
    "patient", "marble", "velvet",  "wandering", "bright", "narrow",  "ancient", "gentle",
    "hidden",  "broken", "golden",  "eager",     "misty",  "solemn",  "rustic",  "nimble",
    "scarlet", "drowsy", "polite",  "stormy",    "tender", "curious", "humble",  "lively"};
constexpr std::array<std::string_view, 32> kNouns = {
    "lantern", "harbour", "orchard", "violin",  "meadow",  "anchor", "cedar",  "ladder",
    "falcon",  "kettle",  "brook",   "compass", "bridge",  "candle", "garden", "mirror",
    "thimble", "saddle",  "willow",  "beacon",  "chapel",  "ribbon", "pebble", "trumpet",
    "acorn",   "basket",  "cottage", "feather", "hammock", "island", "pepper", "sparrow"};
constexpr std::array<std::string_view, 12> kVerbs = {
    "stands beside",  "leans against", "waits behind",  "rests above",
    "belongs with",   "looks like",    "was left near", "was found under",
    "was traded for", "is older than", "is kept with",  "is smaller than"};

template <size_t n>
std::string_view Draw(const std::array<std::string_view, n>& words, Rng* rng) {
  return words[rng->Below(n)];
}

// Fills `items` with what `draw` gives until there are `n` different ones.
template <typename Make>
std::vector<std::string> DrawDistinct(int n, Make draw) {
  std::vector<std::string> items;
  while (static_cast<int>(items.size()) < n) {
    std::string item = draw();
    if (std::find(items.begin(), items.end(), item) == items.end()) items.push_back(item);
  }
  return items;
}

}  // namespace

std::vector<std::string> DrawKeys(int n, Rng* rng) {
  WINNOW_CHECK(n <= static_cast<int>(kAdjectives.size()));
  return DrawDistinct(n, [rng] {
    const std::string_view adjective = Draw(kAdjectives, rng);
    return fmt::format("{}-{}", adjective, Draw(kNouns, rng));
  });
}

std::vector<std::string> DrawNumbers(int n, int digits, Rng* rng) {
  uint64_t least = 1;
  for (int i = 1; i < digits; ++i) least *= 10;
  return DrawDistinct(n, [&] { return std::to_string(least + rng->Below(9 * least)); });
}

std::string DrawWord(int letters, char first, Rng* rng) {
  std::string word;
  for (int i = 0; i < letters; ++i) word += static_cast<char>(first + rng->Below(26));
  return word;
}

std::string DrawSentence(Rng* rng) {
  // One by one: the order in which arguments are evaluated is not defined.
  const std::string_view adjective = Draw(kAdjectives, rng);
  const std::string_view noun = Draw(kNouns, rng);
  const std::string_view verb = Draw(kVerbs, rng);
  const std::string_view other_adjective = Draw(kAdjectives, rng);
  return fmt::format("The {} {} {} the {} {}.", adjective, noun, verb, other_adjective,
                     Draw(kNouns, rng));
}

std::vector<double> DrawDepths(int n, Rng* rng) {
  constexpr int kSteps = 40;
  WINNOW_CHECK(n <= kSteps);
  std::vector<double> depths;
  while (static_cast<int>(depths.size()) < n) {
    const double depth = static_cast<double>(rng->Below(kSteps + 1)) / kSteps;
    if (std::find(depths.begin(), depths.end(), depth) == depths.end()) depths.push_back(depth);
  }
  std::sort(depths.begin(), depths.end());
  return depths;
}

namespace {

// First tokens of the chunks that overlap a passage of the one document.
std::vector<int64_t> EvidenceChunks(const PromptParts& parts, const std::vector<Span>& spans) {
  std::vector<int64_t> chunks;
  for (const Span& span : spans) {
    if (span.kind != SpanKind::kChunk) continue;
    const bool holds = std::ranges::any_of(parts.evidence, [&](const std::string& passage) {
      const size_t at = parts.context.find(passage);
      const auto begin = static_cast<int64_t>(at);
      return at != std::string::npos && begin < span.source_end &&
             span.source_begin < begin + std::ssize(passage);
    });
    if (holds) chunks.push_back(span.begin);
  }
  return chunks;
}

}  // namespace

TaskPrompt MakeTaskPrompt(const TaskInput& input, const PromptParts& parts) {
  std::vector<Document> documents;
  if (!parts.context.empty()) documents.push_back({.id = parts.document, .text = parts.context});
  Prompt prompt = BuildPrompt(*input.tokenizer, documents, parts.question, input.prompt);
  std::string prefix = parts.answer_prefix;
  // Without a template the question ends in the middle of a line.
  if (!prompt.used_chat_template && !prefix.empty()) prefix = "\n" + prefix;
  const std::vector<TokenId> answer =
      input.tokenizer->Encode(prefix, /*add_special=*/false, /*parse_special=*/false);
  prompt.tokens.insert(prompt.tokens.end(), answer.begin(), answer.end());
  return {.tokens = std::move(prompt.tokens),
          .spans = prompt.spans,
          .evidence = EvidenceChunks(parts, prompt.spans)};
}

TaskPrompt FillPrompt(const TaskInput& input, int64_t max_new_tokens, int64_t least, int64_t most,
                      std::string_view task, FunctionRef<PromptParts(int64_t)> make) {
  const int64_t limit = input.length - max_new_tokens;
  const auto prompt_of = [&](int64_t n) { return MakeTaskPrompt(input, make(n)); };
  TaskPrompt best = prompt_of(least);
  const auto frame = std::ssize(best.tokens);
  if (frame > limit) {
    Throw(ErrorKind::kInput,
          "a length of {} tokens is too short for {}: its shortest prompt takes {} and the answer "
          "{}",
          input.length, task, frame, max_new_tokens);
  }
  // Tokenising is what this costs, so n is guessed from the tokens a unit took so far rather than
  // halved. `low` fits, `high` does not.
  int64_t low = least;
  int64_t high = most + 1;
  double tokens_a_unit = 8;
  while (high - low > 1) {
    const double room = static_cast<double>(limit) - static_cast<double>(best.tokens.size());
    const int64_t guess =
        std::clamp(low + static_cast<int64_t>(room / tokens_a_unit), low + 1, high - 1);
    TaskPrompt prompt = prompt_of(guess);
    const auto size = std::ssize(prompt.tokens);
    tokens_a_unit =
        std::max(static_cast<double>(size - frame) / static_cast<double>(guess - least), 1e-3);
    if (size <= limit) {
      low = guess;
      best = std::move(prompt);
    } else {
      high = guess;
    }
  }
  if (low == most) {
    Throw(ErrorKind::kInput, "the text ends before a {} prompt of {} tokens does (--text)", task,
          limit);
  }
  return best;
}

}  // namespace winnow
