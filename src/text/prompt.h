// A prompt knows its spans: every token belongs to exactly one of protected, document chunk or query.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/document.h"
#include "text/tokenizer.h"

namespace winnow {

enum class SpanKind : uint8_t { kProtected, kChunk, kQuery };

struct Span {
  SpanKind kind = SpanKind::kProtected;
  int64_t begin = 0;  // tokens [begin, end) of the prompt
  int64_t end = 0;
  // Of chunks only:
  int document = -1;           // index into Prompt::documents
  int chunk = -1;              // index within the document
  int64_t source_begin = 0;    // bytes [source_begin, source_end) of the document's text
  int64_t source_end = 0;
};

struct PromptDocument {
  std::string id;       // the path or name given by the user
  int64_t n_tokens = 0;
  int n_chunks = 0;
};

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<Span> spans;  // in order, without gaps or overlaps
  std::vector<PromptDocument> documents;
  bool used_chat_template = false;

  // Spans cover the tokens exactly once, chunks of a document cover its bytes once. CHECKs otherwise.
  void CheckInvariants() const;
};

struct PromptOptions {
  int chunk_tokens = 96;      // size aimed at; a chunk is never longer
  std::string system;         // system message, may be empty
  bool chat_template = true;  // false: plain completion even if the model has a template
};

// Documents first, each under a line with its name, then the question, all inside the user's turn of the
// chat template (a model without a template gets the same text as plain completion). Document text is
// never parsed for control tokens. Throws Error(kInput) for an empty prompt (no question, no document).
Prompt BuildPrompt(const Tokenizer& tokenizer, const std::vector<Document>& documents,
                   const std::string& question, const PromptOptions& options);

// A chunk of a tokenised text: tokens [begin, end), bytes [source_begin, source_end).
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t source_begin = 0;
  int64_t source_end = 0;
};

struct ChunkedText {
  std::vector<TokenId> tokens;
  std::vector<Chunk> chunks;  // cover all tokens and all bytes, in order
};

// Tokenises `text` and splits it into chunks of at most `chunk_tokens` tokens, ending at a paragraph
// end where one is near enough, else at a sentence end, else at a word end, else anywhere.
ChunkedText SplitIntoChunks(const Tokenizer& tokenizer, const std::string& text, int chunk_tokens);

}  // namespace winnow
