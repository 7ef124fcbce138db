// What generators share: made-up names and sentences, and prompts filled up to a length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/function_ref.h"
#include "core/rng.h"
#include "eval/task.h"

namespace winnow {

// `n` different keys such as "amber-lantern".
std::vector<std::string> DrawKeys(int n, Rng* rng);
// `n` different numbers of `digits` digits, the first not 0.
std::vector<std::string> DrawNumbers(int n, int digits, Rng* rng);
// A word of `letters` random letters from 'A' or 'a' on.
std::string DrawWord(int letters, char first, Rng* rng);
// A plain sentence without numbers or capitals but the first.
std::string DrawSentence(Rng* rng);

// `n` places for needles, in ascending order, as shares of the context: multiples of 1/40 (RULER's
// depths), different ones.
std::vector<double> DrawDepths(int n, Rng* rng);

struct PromptParts {
  std::string document;  // the name under which the context stands
  std::string context;   // may be empty: then there is no document
  std::string question;
  std::string answer_prefix;  // the first words of the answer, behind the assistant's marker
  // Passages of the context that answer the question; those that are not in it count for nothing.
  std::vector<std::string> evidence;
};

// The prompt as `winnow run` would build it, followed by the answer's first words.
TaskPrompt MakeTaskPrompt(const TaskInput& input, const PromptParts& parts);

// The prompt with the most filler (n units, `least` <= n < `most`) that leaves `max_new_tokens` of
// `input.length`. `make` writes the parts for n units. Throws Error(kInput) if `least` units are
// too long already, or `most` units fit: the text has no more. Both name `task`.
TaskPrompt FillPrompt(const TaskInput& input, int64_t max_new_tokens, int64_t least, int64_t most,
                      std::string_view task, FunctionRef<PromptParts(int64_t)> make);

}  // namespace winnow
