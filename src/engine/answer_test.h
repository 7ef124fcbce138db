// What tests of requests on a fake model share: prompts, and answers with their logits.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "engine/engine.h"

namespace winnow::testing {

// Of the fake model's vocabulary.
inline std::vector<TokenId> RandomTokens(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.Below(101));
  return tokens;
}

struct Answer {
  RequestResult result;
  std::vector<std::vector<float>> logits;
};

// `answer` gets the logits, and outlives the request.
inline Request NewRequest(std::vector<TokenId> tokens, const std::string& arm, int64_t n_new,
                          Answer* answer) {
  Request request;
  request.tokens = std::move(tokens);
  request.arm = arm;
  request.max_new_tokens = n_new;
  request.on_logits = [answer](int64_t /*index*/, std::span<const float> row) {
    answer->logits.emplace_back(row.begin(), row.end());
  };
  return request;
}

inline Answer Generate(Engine* engine, const std::vector<TokenId>& tokens, const std::string& arm,
                       int64_t n_new = 40) {
  Answer answer;
  answer.result = engine->Run(NewRequest(tokens, arm, n_new, &answer));
  engine->CheckInvariants();
  return answer;
}

}  // namespace winnow::testing
