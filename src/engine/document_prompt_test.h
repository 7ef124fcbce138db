// A prompt of a document for the fake model, and an arm that drops most of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/answer_test.h"
#include "text/prompt.h"

namespace winnow::testing {

// The fake model's attention is diffuse: wide tolerances, so that the scan meets its target.
inline const std::string kPrune =
    "prefill=entroprefill,uncalibrated=1,layers=2,v=0,eps=0.95,eps_audit=0.9,keep=0.25";
inline constexpr int64_t kSystem = 10;
inline constexpr int64_t kChunk = 24;
inline constexpr int64_t kChunks = 12;
inline constexpr int64_t kQuestion = 15;
inline constexpr int64_t kDocuments = kSystem + kChunk * kChunks;

// A system message, twelve chunks of a document, a question.
struct DocumentPrompt {
  std::vector<TokenId> tokens;
  std::vector<Span> spans;
};

inline DocumentPrompt MakePrompt(uint64_t seed, int64_t question_tokens = kQuestion) {
  DocumentPrompt prompt{.tokens = RandomTokens(kDocuments, seed)};
  const std::vector<TokenId> question = RandomTokens(question_tokens, seed + 1000);
  prompt.tokens.insert(prompt.tokens.end(), question.begin(), question.end());
  prompt.spans.push_back({.kind = SpanKind::kProtected, .begin = 0, .end = kSystem});
  for (int i = 0; i < kChunks; ++i) {
    const int64_t begin = kSystem + i * kChunk;
    prompt.spans.push_back({.kind = SpanKind::kChunk,
                            .begin = begin,
                            .end = begin + kChunk,
                            .document = 0,
                            .chunk = i});
  }
  if (question_tokens > 0) {
    prompt.spans.push_back(
        {.kind = SpanKind::kQuery, .begin = kDocuments, .end = std::ssize(prompt.tokens)});
  }
  return prompt;
}

}  // namespace winnow::testing
