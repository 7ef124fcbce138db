// Draws tokens from logits through llama.cpp's sampler chain.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"

struct llama_sampler;

namespace winnow {

class Sampler {
 public:
  // `n_vocab` logits a call; penalties look back on `prompt` and on what was drawn since.
  Sampler(const SamplingParams& params, int n_vocab, std::span<const TokenId> prompt);

  // The next token from logits [V]. Greedy: the largest, ties to the lower id.
  TokenId Sample(std::span<const float> logits);

 private:
  struct Free {
    void operator()(llama_sampler* chain) const;
  };
  std::unique_ptr<llama_sampler, Free> chain_;  // null: plain greedy
  int n_vocab_;
};

}  // namespace winnow
