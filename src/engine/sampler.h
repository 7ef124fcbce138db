// Draws tokens from logits through llama.cpp's sampler chain.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"

namespace winnow {

class Sampler {
 public:
  // `n_vocab` logits a call; penalties look back on `prompt` and on what was drawn since, together
  // at most `max_tokens`.
  Sampler(const SamplingParams& params, int n_vocab, int max_tokens,
          std::span<const TokenId> prompt);

  // The next token from logits [V]. Greedy: the largest, ties to the lower id.
  TokenId Sample(std::span<const float> logits);
  // Notes a token that came from elsewhere, for the penalties.
  void Accept(TokenId token);
  // Notes a token that another sampler with these parameters drew: the next draws go on as its do.
  void Replay(TokenId token);

 private:
  struct Free {
    void operator()(llama_sampler* chain) const;
  };
  std::unique_ptr<llama_sampler, Free> chain_;  // null: plain greedy
  std::vector<llama_token_data> candidates_;    // [V], kept between calls
  int n_vocab_;
};

}  // namespace winnow
