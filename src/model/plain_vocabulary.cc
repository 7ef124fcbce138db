#include "model/plain_vocabulary.h"

#include <gguf.h>

#include <array>
#include <string_view>

namespace winnow {
namespace {

// llama.cpp's token types.
constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kUnused = 5;
constexpr int32_t kByte = 6;

}  // namespace

void PlainVocabulary::Add(const std::string& token, int32_t type, float score) {
  tokens.push_back(token);
  scores.push_back(score);
  types.push_back(type);
}

PlainVocabulary MakePlainVocabulary(int64_t size) {
  constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581 stands for a space
  constexpr std::array<std::string_view, 16> kPairs = {"he", "in", "er", "an", "re", "on",
                                                       "at", "en", "nd", "ti", "es", "or",
                                                       "te", "of", "ed", "is"};
  PlainVocabulary v;
  v.Add("<unk>", kUnknown);
  v.Add("<s>", kControl);
  v.Add("</s>", kControl);
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    v.Add(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", kByte);
  }
  v.Add(std::string(kSpace), kNormal, -100);
  for (char c = '!'; c <= '~'; ++c) {
    v.Add(std::string(1, c), kNormal, -100.0f - static_cast<float>(c));
  }
  float score = -1;
  for (std::string_view pair : kPairs) v.Add(std::string(pair), kNormal, score--);
  for (std::string_view word : {"t", "a", "the", "s", "i", "o"}) {
    v.Add(std::string(kSpace) + std::string(word), kNormal, score--);
  }
  while (std::ssize(v.tokens) < size) {
    v.Add("<unused" + std::to_string(v.tokens.size()) + ">", kUnused);
  }
  return v;
}

void WriteTokenizer(gguf_context* gguf, const PlainVocabulary& vocabulary) {
  std::vector<const char*> tokens;
  tokens.reserve(vocabulary.tokens.size());
  for (const std::string& token : vocabulary.tokens) tokens.push_back(token.c_str());
  gguf_set_val_str(gguf, "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", tokens.data(), tokens.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, vocabulary.scores.data(),
                    vocabulary.scores.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, vocabulary.types.data(),
                    vocabulary.types.size());
  gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", 0);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", 2);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_space_prefix", false);
}

}  // namespace winnow
