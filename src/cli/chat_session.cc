#include "cli/chat_session.h"

#include <iterator>
#include <utility>

namespace winnow {

ChatSession::ChatSession(const ChatFlags* flags, LoadedModel* loaded)
    : flags_(flags), loaded_(loaded) {}

void ChatSession::AddDocuments(DocumentSet set) {
  std::move(set.documents.begin(), set.documents.end(), std::back_inserter(pending_.documents));
  std::move(set.skipped.begin(), set.skipped.end(), std::back_inserter(pending_.skipped));
}

void ChatSession::Reset() {
  tokens_.clear();
  pending_ = {};
  turns_ = 0;
  last_.reset();
}

Prompt ChatSession::NextTurn(const std::string& question) const {
  const Tokenizer& tokenizer = *loaded_->tokenizer;
  const PromptOptions options = ToPromptOptions(flags_->prompt);
  if (tokens_.empty()) {
    return BuildPrompt(tokenizer, pending_.documents, question, options);
  }
  return BuildNextTurn(tokenizer, pending_.documents, question, options);
}

RunRecord ChatSession::Ask(const std::string& question, Output* stream,
                           const InterruptScope& interrupts) {
  const Prompt turn = NextTurn(question);
  std::vector<TokenId> tokens = tokens_;
  tokens.insert(tokens.end(), turn.tokens.begin(), turn.tokens.end());
  ProgressBar progress(!flags_->quiet);
  Request request = MakeRequest(flags_->generation, tokens, loaded_->engine->context_tokens());
  RunRecord record =
      MakeRecord(*loaded_, flags_->generation, turn,
                 Generate(*loaded_->engine, std::move(request), stream, progress, interrupts));
  if (record.result.tokens.empty()) return record;
  tokens_ = std::move(tokens);
  tokens_.insert(tokens_.end(), record.result.tokens.begin(), record.result.tokens.end());
  // The next turn begins with what ends this one, the end token included.
  if (loaded_->tokenizer->IsEndOfGeneration(tokens_.back())) tokens_.pop_back();
  record.skipped = std::move(pending_.skipped);
  pending_ = {};
  ++turns_;
  last_ = record;
  return record;
}

}  // namespace winnow
