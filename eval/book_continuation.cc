// Book continuation: plain book text, and how likely the book's own next tokens are. No answer is
// scored.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/rng.h"
#include "eval/filler.h"
#include "eval/generators.h"

namespace winnow {

EvalSample MakeBook(const TaskInput& input) {
  if (input.length <= input.continuation_tokens) {
    Throw(ErrorKind::kInput,
          "a length of {} tokens is too short for book: its continuation alone takes {}",
          input.length, input.continuation_tokens);
  }
  Rng rng(input.seed);
  const Book& book = *input.book;
  const int64_t start = book.DrawStart(*input.tokenizer, input.length, &rng);
  TaskInput plain = input;
  // A template would close the text before the book goes on.
  plain.prompt.chat_template = false;
  plain.prompt.system.clear();
  // Sentences of eight tokens and more; doubled where the book has shorter ones.
  std::vector<TokenId> tokens;
  for (int64_t n = std::max<int64_t>(1, input.length / 8);; n *= 2) {
    n = std::min(n, book.n_sentences() - start);
    tokens = MakeTaskPrompt(
                 plain, {.document = "book.txt", .context = std::string(book.Sentences(start, n))})
                 .tokens;
    if (static_cast<int64_t>(tokens.size()) >= input.length) break;
    if (n == book.n_sentences() - start) {
      Throw(ErrorKind::kInput, "the text ends before a book prompt of {} tokens does (--text)",
            input.length);
    }
  }
  EvalSample sample;
  const int64_t n_prompt = input.length - input.continuation_tokens;
  sample.continuation.assign(tokens.begin() + n_prompt, tokens.begin() + input.length);
  tokens.resize(n_prompt);
  sample.tokens = std::move(tokens);
  sample.max_new_tokens = input.continuation_tokens;
  return sample;
}

}  // namespace winnow
