#include "text/tokenizer.h"

#include <llama.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/library_log.h"

// llama.cpp's common; the headers of its Jinja define functions that not every includer uses.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "chat.h"
#include "log.h"
#pragma GCC diagnostic pop

namespace winnow {
namespace {

// llama.cpp's common code has a logger of its own, with a thread that this keeps from starting.
void SilenceCommonOnce() {
  static std::once_flag once;
  std::call_once(once, [] { common_log_set_verbosity_thold(-1); });
}

void CheckReadable(const std::string& path) {
  // Before anything opens it: a pipe would wait for a writer.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    Throw(ErrorKind::kInput, "{}: a folder, not a GGUF file", path);
  }
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    Throw(ErrorKind::kInput, "{}: not a regular file; a GGUF file is expected", path);
  }
  if (!std::ifstream(path, std::ios::binary)) {
    Throw(ErrorKind::kInput, "{}: cannot be read: {}", path, std::strerror(errno));
  }
}

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelDeleter>;

ModelPtr LoadVocabulary(const std::string& path) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.n_gpu_layers = 0;
  const LogCapture capture;
  ModelPtr model(llama_model_load_from_file(path.c_str(), params));
  if (model == nullptr) {
    const std::string error = capture.FirstError();
    Throw(ErrorKind::kInput, "{}: {}", path,
          error.empty() ? "not a model that llama.cpp can read" : error);
  }
  if (llama_vocab_type(llama_model_get_vocab(model.get())) == LLAMA_VOCAB_TYPE_NONE) {
    Throw(ErrorKind::kInput, "{}: the file holds no tokenizer", path);
  }
  return model;
}

// llama.cpp parses and runs templates by recursion: one that is nested without end would overflow
// the stack. Real ones are some kilobytes long and nest a dozen levels. Throws Error(kInput).
void CheckTemplate(const std::string& path, std::string_view source) {
  constexpr size_t kMaxBytes = size_t{256} << 10;
  constexpr int kMaxDepth = 100;
  if (source.size() > kMaxBytes) {
    Throw(ErrorKind::kInput, "{}: a chat template of {} bytes; {} are allowed", path, source.size(),
          kMaxBytes);
  }
  int brackets = 0;
  int blocks = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (c == '(' || c == '[' || c == '{') ++brackets;
    if (c == ')' || c == ']' || c == '}') brackets = std::max(0, brackets - 1);
    if (c == '%' && i > 0 && source[i - 1] == '{') {
      const size_t word = source.find_first_not_of("-+ \t\r\n", i + 1);
      const std::string_view statement =
          word == std::string_view::npos ? std::string_view() : source.substr(word);
      if (statement.starts_with("end")) {
        blocks = std::max(0, blocks - 1);
      } else if (!statement.starts_with("else") && !statement.starts_with("elif") &&
                 !statement.starts_with("set")) {
        ++blocks;
      }
    }
    if (brackets > kMaxDepth || blocks > kMaxDepth) {
      Throw(ErrorKind::kInput, "{}: the chat template is nested more than {} levels deep", path,
            kMaxDepth);
    }
  }
}

}  // namespace

struct Tokenizer::Impl {
  std::string path;
  ModelPtr model;
  const llama_vocab* vocab = nullptr;
  bool has_chat_template = false;
  // Parsed when first used, since llama.cpp runs a template to learn what it can do.
  common_chat_templates_ptr templates;

  // Throws Error(kInput) if `source` (empty: the file's template) cannot be used.
  void Parse(const std::string& source) {
    const char* own = llama_model_chat_template(model.get(), nullptr);
    std::string_view used = source;
    if (source.empty() && own != nullptr) used = own;
    CheckTemplate(path, used);
    try {
      templates = common_chat_templates_init(model.get(), source);
    } catch (const std::exception&) {  // sliced by llama.cpp: the reason is lost
      if (!source.empty()) {
        Throw(ErrorKind::kInput, "the chat template given for {} is not valid Jinja", path);
      }
      Throw(ErrorKind::kInput,
            "{}: the model's chat template is not valid Jinja; give another one, or use none",
            path);
    }
  }
};

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::Load(const std::string& gguf_path,
                                           const TokenizerOptions& options) {
  SilenceCommonOnce();
  CheckReadable(gguf_path);
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  Impl& impl = *tokenizer->impl_;
  impl.path = gguf_path;
  impl.model = LoadVocabulary(gguf_path);
  impl.vocab = llama_model_get_vocab(impl.model.get());
  // Asked of the file: llama.cpp's common silently takes ChatML where there is none.
  impl.has_chat_template = !options.chat_template.empty() ||
                           llama_model_chat_template(impl.model.get(), nullptr) != nullptr;
  if (!options.chat_template.empty()) impl.Parse(options.chat_template);
  return tokenizer;
}

int Tokenizer::vocabulary() const { return llama_vocab_n_tokens(impl_->vocab); }

const llama_vocab* Tokenizer::vocab() const { return impl_->vocab; }

std::vector<TokenId> Tokenizer::Encode(std::string_view text, bool add_special,
                                       bool parse_special) const {
  constexpr size_t kMaxBytes = size_t{1} << 30;  // llama.cpp counts in int32_t
  if (text.size() > kMaxBytes) {
    Throw(ErrorKind::kInput, "a text of {} bytes is too long: at most {} can be tokenised at once",
          text.size(), kMaxBytes);
  }
  // A token is at least one byte but for BOS, EOS and a space put in front; normalising
  // vocabularies may need more, which the first call then says.
  std::vector<TokenId> tokens(text.size() + 3);
  for (;;) {
    const int32_t n =
        llama_tokenize(impl_->vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                       static_cast<int32_t>(tokens.size()), add_special, parse_special);
    tokens.resize(n < 0 ? -static_cast<int64_t>(n) : n);
    if (n >= 0) return tokens;
  }
}

std::string Tokenizer::Piece(TokenId token, bool special) const {
  WINNOW_CHECK(token >= 0 && token < vocabulary(), "token {} of {}", token, vocabulary());
  std::string piece(32, '\0');
  for (;;) {
    const int32_t n = llama_token_to_piece(impl_->vocab, token, piece.data(),
                                           static_cast<int32_t>(piece.size()), 0, special);
    piece.resize(n < 0 ? -n : n);
    if (n >= 0) return piece;
  }
}

std::string Tokenizer::Decode(const std::vector<TokenId>& tokens) const {
  std::string text;
  for (const TokenId token : tokens) text += Piece(token);
  return text;
}

bool Tokenizer::IsEndOfGeneration(TokenId token) const {
  return llama_vocab_is_eog(impl_->vocab, token);
}

TokenId Tokenizer::bos_to_add() const {
  return llama_vocab_get_add_bos(impl_->vocab) ? llama_vocab_bos(impl_->vocab) : -1;
}

bool Tokenizer::has_chat_template() const { return impl_->has_chat_template; }

std::string Tokenizer::ApplyChatTemplate(const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt) const {
  WINNOW_CHECK(has_chat_template());
  if (impl_->templates == nullptr) impl_->Parse("");
  common_chat_templates_inputs inputs;
  inputs.use_jinja = true;
  inputs.add_generation_prompt = add_generation_prompt;
  for (const ChatMessage& message : messages) {
    common_chat_msg& target = inputs.messages.emplace_back();
    target.role = message.role;
    target.content = message.content;
  }
  try {
    return common_chat_templates_apply(impl_->templates.get(), inputs).prompt;
  } catch (const std::exception& error) {
    Throw(ErrorKind::kInput, "{}: the chat template fails: {}", impl_->path, error.what());
  }
}

}  // namespace winnow
