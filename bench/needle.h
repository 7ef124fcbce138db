// Needles in book text: can a model still find one planted sentence in thousands of tokens?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/peer_llama.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace winnow {

struct NeedlePrompt {
  std::vector<TokenId> tokens;
  std::string value;  // seven digits that a right answer contains
};

// About `n_tokens` tokens (a sentence more or less): a stretch of `book` that begins at a sentence
// chosen by `seed`, with "The special magic number for KEY is VALUE." planted between two of its
// sentences, the question, and the first words of the answer. Throws Error(kInput) if the book is
// too short.
NeedlePrompt MakeNeedlePrompt(const Tokenizer& tokenizer, const std::string& book, int64_t n_tokens,
                              uint64_t seed);

struct NeedleResult {
  int64_t prompt_tokens = 0;
  std::string value;
  std::string winnow_text;  // greedy answers
  std::string peer_text;
  bool winnow_hit = false;
  bool peer_hit = false;
};

// The same prompt, greedily, on both. `peer` holds at least one sequence of the prompt and 24
// tokens.
NeedleResult RunNeedle(const NeedlePrompt& prompt, const Tokenizer& tokenizer, Engine* engine,
                       PeerLlama* peer);

inline constexpr int64_t kNeedleAnswerTokens = 24;

}  // namespace winnow
