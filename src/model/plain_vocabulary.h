// A small SentencePiece vocabulary for ASCII text, for models that were never trained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct gguf_context;

namespace winnow {

struct PlainVocabulary {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;  // llama.cpp's

  void Add(const std::string& token, int32_t type, float score = 0);
};

// <unk>, <s>, </s>, 256 bytes, printable ASCII, a few pairs and words: a multiple of 8, so that a
// quantised output matrix may be repacked. Filled up with unused tokens to `size`, if that is more.
PlainVocabulary MakePlainVocabulary(int64_t size = 0);

// Writes the metadata of a tokenizer over it.
void WriteTokenizer(gguf_context* gguf, const PlainVocabulary& vocabulary);

}  // namespace winnow
