#include "cli/chat_session.h"

#include <iterator>
#include <utility>

#include "core/error.h"
#include "text/utf8.h"

namespace winnow {

namespace {

// Else the turn leaves no trace.
bool Answered(const RequestResult& result) {
  return !result.tokens.empty() && result.finish_reason != FinishReason::kFailed;
}

}  // namespace

int64_t KeptAnswerTokens(const Tokenizer& tokenizer, const RequestResult& result) {
  auto n = static_cast<int64_t>(result.tokens.size());
  if (result.finish_reason != FinishReason::kStopString) {
    return n > 0 && tokenizer.IsEndOfGeneration(result.tokens.back()) ? n - 1 : n;
  }
  const auto shown = [&](int64_t count) {
    const std::vector<TokenId> first(result.tokens.begin(), result.tokens.begin() + count);
    return result.text.starts_with(ReplaceInvalidUtf8(tokenizer.Decode(first)));
  };
  while (n > 0 && !shown(n)) --n;
  return n;
}

ChatSession::ChatSession(const ChatFlags* flags, LoadedModel* loaded, DocumentSet documents)
    : flags_(flags), loaded_(loaded), first_(std::move(documents)), pending_(first_) {}

void ChatSession::AddDocuments(DocumentSet set) {
  std::move(set.documents.begin(), set.documents.end(), std::back_inserter(pending_.documents));
  std::move(set.skipped.begin(), set.skipped.end(), std::back_inserter(pending_.skipped));
}

size_t ChatSession::Reset() {
  tokens_.clear();
  spans_.clear();
  pending_ = first_;
  turns_ = 0;
  n_asked_ = 0;
  last_prompt_ = {};
  last_.reset();
  return pending_.documents.size();
}

std::vector<std::string> ChatSession::DropDocuments(const std::string& question) {
  if (pending_.documents.empty()) return {};
  try {
    const size_t alone = tokens_.size() + NextTurn({}, question).tokens.size();
    if (static_cast<int64_t>(alone) >= loaded_->engine->context_tokens()) return {};
  } catch (const Error&) {
    return {};
  }
  std::vector<std::string> names;
  for (const Document& document : pending_.documents) names.push_back(document.id);
  pending_ = {};
  return names;
}

Prompt ChatSession::NextTurn(const std::vector<Document>& documents,
                             const std::string& question) const {
  const Tokenizer& tokenizer = *loaded_->tokenizer;
  const PromptOptions options =
      ToPromptOptions(flags_->prompt, documents, {flags_->generation.arm});
  if (tokens_.empty()) {
    return BuildPrompt(tokenizer, documents, question, options);
  }
  return BuildNextTurn(tokenizer, documents, question, options);
}

RunRecord ChatSession::Ask(const std::string& question, Output* stream,
                           const InterruptScope& interrupts) {
  const Prompt turn = NextTurn(pending_.documents, question);
  std::vector<TokenId> tokens = tokens_;
  tokens.insert(tokens.end(), turn.tokens.begin(), turn.tokens.end());
  std::vector<Span> spans = spans_;
  for (Span span : turn.spans) {
    span.begin += std::ssize(tokens_);
    span.end += std::ssize(tokens_);
    spans.push_back(span);
  }
  RunRecord record = Answer(turn, tokens, spans, /*keep_all=*/false, stream, interrupts);
  if (!Answered(record.result)) return record;
  n_asked_ = std::ssize(tokens);
  tokens_ = std::move(tokens);
  spans_ = std::move(spans);
  record.skipped = std::move(pending_.skipped);
  pending_ = {};
  ++turns_;
  Keep(turn, record);
  return record;
}

RunRecord ChatSession::Restore(Output* stream, const InterruptScope& interrupts) {
  if (!last_.has_value()) Throw(ErrorKind::kUsage, "/restore: no question was answered yet");
  const std::shared_ptr<const PruneLedger> pruning = last_->result.ledger.pruning;
  if (pruning == nullptr || pruning->applied_layer == 0) {
    Throw(ErrorKind::kUsage, "/restore: the last answer is over everything already{}",
          pruning == nullptr ? "; nothing is dropped without an --arm that prunes" : "");
  }
  const std::vector<TokenId> asked(tokens_.begin(), tokens_.begin() + n_asked_);
  RunRecord record = Answer(last_prompt_, asked, spans_, /*keep_all=*/true, stream, interrupts);
  if (!Answered(record.result)) return record;
  record.skipped = last_->skipped;
  tokens_ = asked;
  Keep(Prompt(last_prompt_), record);
  return record;
}

RunRecord ChatSession::Answer(const Prompt& turn, const std::vector<TokenId>& tokens,
                              const std::vector<Span>& spans, bool keep_all, Output* stream,
                              const InterruptScope& interrupts) {
  ProgressBar progress(!flags_->quiet);
  Request request =
      MakeRequest(flags_->generation, tokens, spans, loaded_->engine->context_tokens());
  request.keep_all = keep_all;
  return MakeRecord(*loaded_, flags_->generation, turn,
                    Generate(*loaded_->engine, std::move(request), stream, progress, interrupts));
}

void ChatSession::Keep(Prompt turn, const RunRecord& record) {
  const RequestResult& result = record.result;
  const int64_t n_kept = KeptAnswerTokens(*loaded_->tokenizer, result);
  tokens_.insert(tokens_.end(), result.tokens.begin(), result.tokens.begin() + n_kept);
  last_prompt_ = std::move(turn);
  last_ = record;
}

}  // namespace winnow
