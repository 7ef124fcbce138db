#include "text/prompt.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "text/utf8.h"

namespace winnow {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

// A name on one line, whatever the file is called.
std::string OneLine(std::string_view name) {
  std::string line = ReplaceInvalidUtf8(name);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return line;
}

// Words that stand for the messages while the template is rendered. Letters and digits only:
// templates trim, escape or look for tags, but leave a word alone. No text of the user is rendered
// with it, so it cannot be there twice but by the template's doing.
constexpr std::string_view kSystemPlaceholder = "Winnow7Placeholder7System";
constexpr std::string_view kUserPlaceholder = "Winnow7Placeholder7User";
constexpr std::string_view kAssistantPlaceholder = "Winnow7Placeholder7Assistant";

// Where `placeholder` stands in `rendered`, which must be exactly once.
size_t FindOnce(std::string_view rendered, std::string_view placeholder, std::string_view role) {
  const size_t at = rendered.find(placeholder);
  if (at == std::string_view::npos) {
    Throw(ErrorKind::kInput,
          "the model's chat template does not write out the {} message unchanged; give another "
          "template, or use none",
          role);
  }
  if (rendered.find(placeholder, at + 1) != std::string_view::npos) {
    Throw(
        ErrorKind::kInput,
        "the model's chat template writes the {} message more than once; give another template, or "
        "use none",
        role);
  }
  return at;
}

class PromptBuilder {
 public:
  PromptBuilder(const Tokenizer& tokenizer, const PromptOptions& options)
      : tokenizer_(tokenizer), options_(options) {
    prompt_.used_chat_template = options.chat_template && tokenizer.has_chat_template();
  }

  bool uses_template() const { return prompt_.used_chat_template; }

  // The template's own text: control tokens count.
  void AddTemplateText(std::string_view text) {
    AddSpan(SpanKind::kProtected, tokenizer_.Encode(text, false, /*parse_special=*/true));
  }

  // Text that we or the user write: control tokens are mere characters.
  void AddText(SpanKind kind, std::string_view text) {
    AddSpan(kind, tokenizer_.Encode(text, false, /*parse_special=*/false));
  }

  // BOS, unless `rendered`, which the prompt is to begin with, writes it out.
  void AddBos(std::string_view rendered) {
    const TokenId bos = tokenizer_.bos_to_add();
    if (bos < 0 || rendered.starts_with(tokenizer_.Piece(bos, /*special=*/true))) return;
    AddSpan(SpanKind::kProtected, {bos});
  }

  // What the user says: each document under its name, a blank line after each, then the question.
  void AddUserContent(const std::vector<Document>& documents, std::string_view question) {
    std::string between;  // closes the document before
    for (const Document& document : documents) {
      AddText(SpanKind::kProtected, between + "Document: " + OneLine(document.id) + "\n");
      AddDocument(document);
      between = document.text.ends_with("\n\n") ? ""
                : document.text.ends_with('\n') ? "\n"
                                                : "\n\n";
    }
    if (question.empty()) return;
    AddText(SpanKind::kProtected, between);
    AddText(SpanKind::kQuery, question);
  }

  Prompt Finish() && {
    prompt_.CheckInvariants();
    return std::move(prompt_);
  }

 private:
  void AddSpan(SpanKind kind, const std::vector<TokenId>& tokens) {
    if (tokens.empty()) return;
    const auto begin = static_cast<int64_t>(prompt_.tokens.size());
    prompt_.tokens.insert(prompt_.tokens.end(), tokens.begin(), tokens.end());
    const auto end = static_cast<int64_t>(prompt_.tokens.size());
    if (kind == SpanKind::kProtected && !prompt_.spans.empty() &&
        prompt_.spans.back().kind == kind) {
      prompt_.spans.back().end = end;
      return;
    }
    prompt_.spans.push_back({.kind = kind, .begin = begin, .end = end});
  }

  bool IsProtected(const Document& document, const Chunk& chunk) const {
    return std::ranges::any_of(options_.protect, [&](const ProtectedRange& range) {
      return range.document == document.id && range.begin < chunk.source_end &&
             chunk.source_begin < range.end;
    });
  }

  void AddDocument(const Document& document) {
    const ChunkedText text = SplitIntoChunks(tokenizer_, document.text, options_.chunk_tokens);
    const auto at = static_cast<int64_t>(prompt_.tokens.size());
    prompt_.tokens.insert(prompt_.tokens.end(), text.tokens.begin(), text.tokens.end());
    for (size_t i = 0; i < text.chunks.size(); ++i) {
      const Chunk& chunk = text.chunks[i];
      prompt_.spans.push_back({.kind = SpanKind::kChunk,
                               .begin = at + chunk.begin,
                               .end = at + chunk.end,
                               .document = static_cast<int>(prompt_.documents.size()),
                               .chunk = static_cast<int>(i),
                               .source_begin = chunk.source_begin,
                               .source_end = chunk.source_end,
                               .pinned = IsProtected(document, chunk)});
    }
    prompt_.documents.push_back({.id = document.id,
                                 .n_tokens = static_cast<int64_t>(text.tokens.size()),
                                 .n_chunks = static_cast<int>(text.chunks.size()),
                                 .n_bytes = static_cast<int64_t>(document.text.size())});
  }

  const Tokenizer& tokenizer_;
  const PromptOptions& options_;
  Prompt prompt_;
};

void CheckUserContent(const std::vector<Document>& documents, const std::string& question) {
  if (documents.empty() && Trimmed(question).empty()) {
    Throw(ErrorKind::kInput, "the prompt is empty: give a question, documents, or both");
  }
  CheckUtf8(question, "the question");
}

}  // namespace

Prompt BuildPrompt(const Tokenizer& tokenizer, const std::vector<Document>& documents,
                   const std::string& question, const PromptOptions& options) {
  CheckUserContent(documents, question);
  CheckUtf8(options.system, "the system message");
  PromptBuilder builder(tokenizer, options);
  if (!builder.uses_template()) {
    builder.AddBos({});
    if (!options.system.empty()) builder.AddText(SpanKind::kProtected, options.system + "\n\n");
    builder.AddUserContent(documents, question);
    return std::move(builder).Finish();
  }

  const std::string system(kSystemPlaceholder);
  const std::string user(kUserPlaceholder);
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", user});
  const std::string rendered = tokenizer.ApplyChatTemplate(messages, true);
  const size_t user_at = FindOnce(rendered, user, "user");
  std::string_view before = std::string_view{rendered}.substr(0, user_at);
  builder.AddBos(rendered);
  if (!options.system.empty()) {
    const size_t system_at = FindOnce(before, system, "system");
    builder.AddTemplateText(before.substr(0, system_at));
    builder.AddText(SpanKind::kProtected, options.system);
    before.remove_prefix(system_at + system.size());
  }
  builder.AddTemplateText(before);
  builder.AddUserContent(documents, Trimmed(question));
  builder.AddTemplateText(std::string_view{rendered}.substr(user_at + user.size()));
  return std::move(builder).Finish();
}

Prompt BuildNextTurn(const Tokenizer& tokenizer, const std::vector<Document>& documents,
                     const std::string& question, const PromptOptions& options) {
  CheckUserContent(documents, question);
  PromptBuilder builder(tokenizer, options);
  if (!builder.uses_template()) {
    builder.AddText(SpanKind::kProtected, "\n\n");
    builder.AddUserContent(documents, question);
    return std::move(builder).Finish();
  }

  const std::string assistant(kAssistantPlaceholder);
  const std::string user(kUserPlaceholder);
  const std::string rendered = tokenizer.ApplyChatTemplate(
      {{"user", "Hello"}, {"assistant", assistant}, {"user", user}}, true);
  const size_t begin = FindOnce(rendered, assistant, "assistant") + assistant.size();
  const size_t user_at = FindOnce(rendered, user, "user");
  if (user_at < begin) {
    Throw(ErrorKind::kInput, "the model's chat template does not keep the messages in order");
  }
  builder.AddTemplateText(std::string_view{rendered}.substr(begin, user_at - begin));
  builder.AddUserContent(documents, Trimmed(question));
  builder.AddTemplateText(std::string_view{rendered}.substr(user_at + user.size()));
  return std::move(builder).Finish();
}

void Prompt::CheckInvariants() const {
  std::vector<PromptDocument> seen(documents.size());
  int64_t at = 0;
  for (const Span& span : spans) {
    WINNOW_CHECK(span.begin == at && span.end > at, "span [{}, {}) after token {}", span.begin,
                 span.end, at);
    at = span.end;
    if (span.kind != SpanKind::kChunk) continue;
    WINNOW_CHECK(span.document >= 0 && span.document < static_cast<int>(documents.size()),
                 "document {} of {}", span.document, documents.size());
    PromptDocument& document = seen[span.document];
    WINNOW_CHECK(span.chunk == document.n_chunks, "chunk {} where {} is due", span.chunk,
                 document.n_chunks);
    WINNOW_CHECK(span.source_begin == document.n_bytes && span.source_end >= span.source_begin,
                 "bytes [{}, {}) after {}", span.source_begin, span.source_end, document.n_bytes);
    document.n_tokens += span.end - span.begin;
    document.n_bytes = span.source_end;
    ++document.n_chunks;
  }
  WINNOW_CHECK(at == static_cast<int64_t>(tokens.size()), "spans end at {} of {} tokens", at,
               tokens.size());
  for (size_t i = 0; i < documents.size(); ++i) {
    WINNOW_CHECK(
        seen[i].n_tokens == documents[i].n_tokens && seen[i].n_chunks == documents[i].n_chunks,
        "document {}: {} tokens in {} chunks, not {} in {}", i, seen[i].n_tokens, seen[i].n_chunks,
        documents[i].n_tokens, documents[i].n_chunks);
    // Text of which the tokenizer keeps nothing has bytes but no chunk.
    WINNOW_CHECK(seen[i].n_bytes == documents[i].n_bytes || documents[i].n_chunks == 0,
                 "document {}: chunks end at byte {} of {}", i, seen[i].n_bytes,
                 documents[i].n_bytes);
  }
}

}  // namespace winnow
