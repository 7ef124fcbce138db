// Frequent words (the kind of RULER's fwe): made-up words in a list, as often as a Zipf law of
// exponent 2 says; the most frequent one is printed as dots, the next three are asked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numbers>
#include <utility>

#include "core/rng.h"
#include "eval/filler.h"
#include "eval/generators.h"

namespace winnow {
namespace {

constexpr int kAsked = 3;
constexpr int kLetters = 6;
// Three made-up words of up to six tokens, numbering and commas.
constexpr int64_t kAnswerTokens = 50;
// So few words give the fourth rank a copy more than the fifth.
constexpr int64_t kLeastWords = 60;

// n words: rank k (from 1) has floor(n / (k² ζ(2))) copies; shuffled.
std::vector<std::string> Words(const std::vector<std::string>& ranked, int64_t n, uint64_t seed) {
  constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6;
  std::vector<std::string> words;
  for (size_t rank = 1; rank <= ranked.size(); ++rank) {
    const auto square = static_cast<double>(rank * rank);
    const auto copies = static_cast<int64_t>(static_cast<double>(n) / (square * kZeta2));
    if (copies == 0) break;
    words.insert(words.end(), copies, ranked[rank - 1]);
  }
  Rng rng(seed);
  for (size_t i = words.size(); i > 1; --i) std::swap(words[i - 1], words[rng.Below(i)]);
  return words;
}

}  // namespace

EvalSample MakeFrequentWords(const TaskInput& input) {
  Rng rng(input.seed);
  std::vector<std::string> ranked = {"..."};
  // Ranks beyond sqrt(n) have no copy; n is below the length in tokens.
  while (static_cast<int64_t>(ranked.size() * ranked.size()) <
         std::max<int64_t>(input.length, 64)) {
    std::string word = DrawWord(kLetters, 'a', &rng);
    if (std::find(ranked.begin(), ranked.end(), word) == ranked.end()) ranked.push_back(word);
  }
  const uint64_t order_seed = rng.Next();
  const auto make = [&](int64_t n) {
    return PromptParts{
        .document = "words.txt",
        .context = fmt::format("{}\n", fmt::join(Words(ranked, n, order_seed), " ")),
        .question = fmt::format("Leave out the dots. Which {} words appear most often in the text?",
                                kAsked),
        .answer_prefix = fmt::format("The {} words that appear most often are:", kAsked)};
  };
  EvalSample sample;
  static_cast<TaskPrompt&>(sample) = FillPrompt(
      input, kAnswerTokens, kLeastWords, std::max(input.length, kLeastWords), "frequent", make);
  sample.max_new_tokens = kAnswerTokens;
  sample.answers.assign(ranked.begin() + 1, ranked.begin() + 1 + kAsked);
  return sample;
}

}  // namespace winnow
