// Needles: numbers hidden between the sentences of a book (the kind of RULER's NIAH single_2 and
// multikey_1), in our own words.
#include <fmt/format.h>

#include <utility>

#include "core/rng.h"
#include "eval/filler.h"
#include "eval/generators.h"

namespace winnow {
namespace {

// The answer restates nothing but the number: seven digits, a full stop, and some to spare.
constexpr int64_t kAnswerTokens = 24;

std::string NeedleOf(const std::string& key, const std::string& value) {
  return fmt::format("The special magic number for {} is {}.", key, value);
}

EvalSample MakeNeedles(const TaskInput& input, int n_keys, std::string_view task) {
  Rng rng(input.seed);
  const std::vector<std::string> keys = DrawKeys(n_keys, &rng);
  const std::vector<std::string> values = DrawNumbers(n_keys, 7, &rng);
  const std::vector<double> depths = DrawDepths(n_keys, &rng);
  const uint64_t asked = rng.Below(n_keys);
  const int64_t start = input.book->DrawStart(*input.tokenizer, input.length, &rng);

  const auto make = [&](int64_t n_sentences) {
    std::string text;
    int64_t at = 0;
    const auto add_book = [&](int64_t end) {
      if (end == at) return;
      if (!text.empty()) text += ' ';
      text += input.book->Sentences(start + at, end - at);
      at = end;
    };
    for (int i = 0; i < n_keys; ++i) {
      add_book(static_cast<int64_t>(depths[i] * static_cast<double>(n_sentences)));
      if (!text.empty()) text += ' ';
      text += NeedleOf(keys[i], values[i]);
    }
    add_book(n_sentences);
    return PromptParts{
        .document = "book.txt",
        .context = std::move(text),
        .question = fmt::format("What is the special magic number for {}?", keys[asked]),
        .answer_prefix = fmt::format("The special magic number for {} is", keys[asked]),
        .evidence = {NeedleOf(keys[asked], values[asked])}};
  };
  EvalSample sample;
  static_cast<TaskPrompt&>(sample) =
      FillPrompt(input, kAnswerTokens, 1, input.book->n_sentences() - start, task, make);
  sample.max_new_tokens = kAnswerTokens;
  sample.answers = {values[asked]};
  return sample;
}

}  // namespace

EvalSample MakeNeedle(const TaskInput& input) { return MakeNeedles(input, 1, "needle"); }

EvalSample MakeMultikeyNeedle(const TaskInput& input) { return MakeNeedles(input, 4, "multikey"); }

}  // namespace winnow
