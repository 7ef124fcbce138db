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

struct TokenizerOptions {
  // Jinja source used in place of the file's chat template ("chatml": the built-in one); empty: the
  // file's own, if it has one.
  std::string chat_template;
};

class Tokenizer {
 public:
  // Reads only the vocabulary and the template. Throws Error(kInput) that names the file, also for
  // an `options.chat_template` that cannot be parsed. A broken template in the file is reported by
  // ApplyChatTemplate only, since the model can still complete plain text.
  static std::unique_ptr<Tokenizer> Load(const std::string& gguf_path,
                                         const TokenizerOptions& options = {});
  ~Tokenizer();

  int vocabulary() const;
  // `parse_special`: text such as "<|im_end|>" becomes the control token; never for user text.
  // `add_special`: BOS/EOS as the model wants them. Throws Error(kInput) for text above 1 GiB.
  std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const;
  // Bytes of one token; control tokens give "" unless `special`. May be a part of a UTF-8
  // character.
  std::string Piece(TokenId token, bool special = false) const;
  // The pieces one after another, byte for byte (no clean-up of spaces).
  std::string Decode(const std::vector<TokenId>& tokens) const;
  bool IsEndOfGeneration(TokenId token) const;
  // BOS if the model wants every text to begin with it, else -1.
  TokenId bos_to_add() const;

  bool has_chat_template() const;
  // The conversation as the template writes it (without BOS where the model adds it anyway), ending
  // where the assistant begins to speak if `add_generation_prompt`. Throws Error(kInput) if the
  // template fails.
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
