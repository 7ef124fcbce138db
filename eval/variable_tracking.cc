// Variable tracking (the kind of RULER's vt): a chain of assignments between sentences of no
// matter; every name that ends up with the value is asked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/rng.h"
#include "eval/filler.h"
#include "eval/generators.h"

namespace winnow {
namespace {

constexpr int kHops = 4;
// Five names of five capitals, each two or three tokens and a comma.
constexpr int64_t kAnswerTokens = 30;

}  // namespace

EvalSample MakeVariableTracking(const TaskInput& input) {
  Rng rng(input.seed);
  std::vector<std::string> names;
  while (names.size() < kHops + 1) {
    std::string name = DrawWord(5, 'A', &rng);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  const std::string value = DrawNumbers(1, 5, &rng).front();
  const std::vector<double> depths = DrawDepths(kHops + 1, &rng);
  const uint64_t filler_seed = rng.Next();

  const auto make = [&](int64_t n_lines) {
    Rng filler(filler_seed);
    std::string text;
    std::vector<std::string> chain;
    int next = 0;
    for (int64_t line = 0; line <= n_lines; ++line) {
      for (; next <= kHops &&
             static_cast<int64_t>(depths[next] * static_cast<double>(n_lines)) <= line;
           ++next) {
        chain.push_back(next == 0 ? fmt::format("VAR {} = {}\n", names[0], value)
                                  : fmt::format("VAR {} = VAR {}\n", names[next], names[next - 1]));
        text += chain.back();
      }
      if (line < n_lines) text += DrawSentence(&filler) + "\n";
    }
    return PromptParts{
        .document = "assignments.txt",
        .context = std::move(text),
        .question = fmt::format("Some lines of the text assign variables. Name every variable that "
                                "holds the value {}, whether it was assigned the value itself or "
                                "another variable that holds it.",
                                value),
        .answer_prefix =
            fmt::format("The {} variables that hold the value {} are:", kHops + 1, value),
        .evidence = std::move(chain)};
  };
  EvalSample sample;
  static_cast<TaskPrompt&>(sample) =
      FillPrompt(input, kAnswerTokens, 1, input.length, "variables", make);
  sample.max_new_tokens = kAnswerTokens;
  sample.answers = names;
  return sample;
}

}  // namespace winnow
