// What the tests of this folder share: real vocabularies, loaded once per test binary.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "testing/paths.h"
#include "text/tokenizer.h"

namespace winnow::testing {

// The default model's tokenizer for "default", else that of llama.cpp's ggml-vocab-NAME.gguf; null
// if the file is absent. With `chat_template`, that template in place of the file's.
inline const Tokenizer* SharedTokenizer(const std::string& name,
                                        const std::string& chat_template = "") {
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  std::unique_ptr<Tokenizer>& tokenizer = loaded[name + "\n" + chat_template];
  if (tokenizer == nullptr) {
    const std::string path = name == "default"
                                 ? DefaultModelPath().value_or("")
                                 : WINNOW_VOCABULARY_DIR "/ggml-vocab-" + name + ".gguf";
    if (!std::filesystem::exists(path)) return nullptr;
    tokenizer = Tokenizer::Load(path, {.chat_template = chat_template});
  }
  return tokenizer.get();
}

}  // namespace winnow::testing
