// A prompt knows its spans: every token belongs to exactly one of protected, document chunk or
// query.
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
  int document = -1;         // index into Prompt::documents
  int chunk = -1;            // index within the document
  int64_t source_begin = 0;  // bytes [source_begin, source_end) of the document's text
  int64_t source_end = 0;
  bool pinned = false;  // may not be dropped
};

// Bytes [begin, end) of a document that are never to be dropped; with them every chunk that holds
// one of them.
struct ProtectedRange {
  std::string document;  // its id
  int64_t begin = 0;
  int64_t end = 0;
};

struct PromptDocument {
  std::string id;  // the path or name given by the user
  int64_t n_tokens = 0;
  int n_chunks = 0;
  int64_t n_bytes = 0;  // of the document's text
};

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<Span> spans;  // in order, without gaps or overlaps
  std::vector<PromptDocument> documents;
  bool used_chat_template = false;

  // Spans cover the tokens exactly once, chunks of a document cover its bytes once. CHECKs
  // otherwise.
  void CheckInvariants() const;
};

struct PromptOptions {
  int chunk_tokens = 96;                // size aimed at; a chunk is never longer
  std::string system;                   // system message, may be empty
  bool chat_template = true;            // false: plain completion even if the model has a template
  std::vector<ProtectedRange> protect;  // of documents with other ids: ignored
};

// Documents first, each under a line with its name, then the question, all inside the user's turn
// of the chat template (a model without a template gets the same text as plain completion).
// Document text is never parsed for control tokens, nor is the question, a name or the system
// message. Throws Error(kInput) for an empty prompt (no question, no document), a question or
// system message that is not UTF-8, and a template that fails or does not write a message out
// unchanged.
Prompt BuildPrompt(const Tokenizer& tokenizer, const std::vector<Document>& documents,
                   const std::string& question, const PromptOptions& options);

// The user's next turn of a conversation whose tokens so far, up to the last of the assistant's
// words, are in the KV cache: begins with what ends the assistant's turn (the end-of-generation
// token is part of it, so it must not be in the cache), holds documents and question as BuildPrompt
// lays them out, and ends where the assistant speaks again. Without a template: a blank line, then
// the text. `options.system` is not used. Throws as BuildPrompt does.
Prompt BuildNextTurn(const Tokenizer& tokenizer, const std::vector<Document>& documents,
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

// Tokenises `text` and splits it into chunks of at most `chunk_tokens` tokens. A chunk ends at the
// last paragraph end in the second half of what it may hold, else at the last sentence end there,
// line end, word end, or character; inside a character only where one has more tokens than fit.
// With vocabularies that normalise text, lines and sentences are tokenised one by one, so that byte
// ranges stay exact. Throws Error(kUsage) if chunk_tokens < 1.
ChunkedText SplitIntoChunks(const Tokenizer& tokenizer, const std::string& text, int chunk_tokens);

}  // namespace winnow
