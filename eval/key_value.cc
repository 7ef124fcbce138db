// Key–value retrieval: a JSON object of random identifiers, which no guess can answer and no
// compression can shorten; the value of one key is asked for.
#include <fmt/format.h>

#include <utility>

#include "core/rng.h"
#include "eval/filler.h"
#include "eval/generators.h"

namespace winnow {
namespace {

// An identifier has 36 characters: at worst a token each, and the quote.
constexpr int64_t kAnswerTokens = 40;

// Random bits in the form of a UUID.
std::string DrawIdentifier(Rng* rng) {
  const uint64_t high = rng->Next();
  const uint64_t low = rng->Next();
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xffff,
                     high & 0xffff, low >> 48, low & 0xffffffffffff);
}

}  // namespace

EvalSample MakeKeyValue(const TaskInput& input) {
  Rng rng(input.seed);
  const double depth = rng.Uniform();
  const std::string key = DrawIdentifier(&rng);
  const std::string value = DrawIdentifier(&rng);
  const uint64_t filler_seed = rng.Next();

  const auto make = [&](int64_t n_pairs) {
    Rng filler(filler_seed);
    const auto asked = static_cast<int64_t>(depth * static_cast<double>(n_pairs));
    std::string text = "{";
    for (int64_t i = 0; i < n_pairs; ++i) {
      const std::string other_key = DrawIdentifier(&filler);
      const std::string other_value = DrawIdentifier(&filler);
      text += fmt::format("{}\"{}\": \"{}\"", i == 0 ? "" : ",\n ", i == asked ? key : other_key,
                          i == asked ? value : other_value);
    }
    return PromptParts{
        .document = "data.json",
        .context = text + "}\n",
        .question = fmt::format("What is the value of the key \"{}\" in the JSON object?", key),
        .answer_prefix = fmt::format("The value of the key \"{}\" is \"", key),
        .evidence = {fmt::format("\"{}\": \"{}\"", key, value)}};
  };
  EvalSample sample;
  static_cast<TaskPrompt&>(sample) =
      FillPrompt(input, kAnswerTokens, 1, input.length, "keyvalue", make);
  sample.max_new_tokens = kAnswerTokens;
  sample.answers = {value};
  return sample;
}

}  // namespace winnow
