// Text to tokens and back, and the model's chat template: llama.cpp's, read from the GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct llama_vocab;

namespace winnow {

using TokenId = int32_t;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class Tokenizer {
 public:
  // Reads only the vocabulary and the template. Throws Error(kInput) that names the file.
  static std::unique_ptr<Tokenizer> Load(const std::string& gguf_path);
  ~Tokenizer();

  int vocabulary() const;
  // `parse_special`: text such as "<|im_end|>" becomes the control token; never for user text.
  // `add_special`: BOS/EOS as the model wants them.
  std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const;
  // Bytes of one token; control tokens give "" unless `special`. May be a part of a UTF-8 character.
  std::string Piece(TokenId token, bool special = false) const;
  std::string Decode(const std::vector<TokenId>& tokens) const;
  bool IsEndOfGeneration(TokenId token) const;

  bool has_chat_template() const;
  // The conversation as the template writes it, ending where the assistant begins to speak if
  // `add_generation_prompt`. Throws Error(kInput) if the template fails.
  std::string ApplyChatTemplate(const std::vector<ChatMessage>& messages,
                                bool add_generation_prompt) const;

  const llama_vocab* vocab() const;  // for the sampler chain

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Cuts a stream of token bytes at whole UTF-8 characters: Push returns what can be printed now.
class Utf8Assembler {
 public:
  std::string Push(std::string_view bytes);
  // What is left, invalid bytes replaced by U+FFFD.
  std::string Flush();

 private:
  std::string pending_;
};

}  // namespace winnow
