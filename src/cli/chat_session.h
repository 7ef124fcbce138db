// A conversation: its tokens so far, the documents for its next question, and what its turns cost.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/generation.h"
#include "cli/run_record.h"

namespace winnow {

struct ChatFlags {
  ModelFlags model;
  PromptFlags prompt;
  GenerationFlags generation;
  bool quiet = false;
};

// How many of the answer's tokens the conversation keeps: all but the end token, with which the
// next turn begins; after a stop string only those before the first token that contributed to it,
// so that the model has said what was shown (less what of that token was shown).
int64_t KeptAnswerTokens(const Tokenizer& tokenizer, const RequestResult& result);

class ChatSession {
 public:
  // `documents` are read with the first question. `flags` and `loaded` outlive the session.
  ChatSession(const ChatFlags* flags, LoadedModel* loaded, DocumentSet documents);

  // Documents that the next question is asked about.
  void AddDocuments(DocumentSet set);
  // Goes back to the start: no conversation, and the first documents wait for a question again.
  // Returns how many these are.
  size_t Reset();
  // After a turn that failed: takes the waiting documents away, lest they make every further turn
  // fail, and returns their names. Keeps them, and returns nothing, if `question` by itself
  // cannot be asked either (too long for what the context leaves, say): it was not them.
  std::vector<std::string> DropDocuments(const std::string& question);

  // One turn: submits the whole conversation and the question, which resumes at the pages that are
  // resident. The answer goes to `stream` unless null. A turn that ends before its first token,
  // fails or throws leaves the conversation as it was.
  RunRecord Ask(const std::string& question, Output* stream, const InterruptScope& interrupts);

  // Answers the last question again, over everything that its arm dropped, from what is parked of
  // it as far as that is still there; the new answer takes the place of the last one. One that ends
  // before its first token, fails or throws leaves the conversation as it was. Throws Error(kUsage)
  // if nothing was dropped.
  RunRecord Restore(Output* stream, const InterruptScope& interrupts);

  int turns() const { return turns_; }
  int64_t n_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // The last answered turn, if there was one.
  const std::optional<RunRecord>& last() const { return last_; }

 private:
  // The new turn alone, to be appended to tokens_.
  Prompt NextTurn(const std::vector<Document>& documents, const std::string& question) const;

  // The answer to `tokens`, which end with `turn`.
  RunRecord Answer(const Prompt& turn, const std::vector<TokenId>& tokens,
                   const std::vector<Span>& spans, bool keep_all, Output* stream,
                   const InterruptScope& interrupts);
  // The conversation goes on from this answer.
  void Keep(Prompt turn, const RunRecord& record);

  const ChatFlags* flags_;
  LoadedModel* loaded_;
  std::vector<TokenId> tokens_;  // prompts and answers of the finished turns
  std::vector<Span> spans_;      // of them; answers belong to none
  DocumentSet first_;            // as the session began
  DocumentSet pending_;          // for the next question
  int turns_ = 0;
  int64_t n_asked_ = 0;  // of tokens_, up to the last question, without its answer
  Prompt last_prompt_;   // that turn alone
  std::optional<RunRecord> last_;
};

}  // namespace winnow
