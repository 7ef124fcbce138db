// What an arm that prunes did to the documents of a prompt: by document, and in words.
#pragma once

#include <string>
#include <vector>

#include "ledger/ledger.h"
#include "text/prompt.h"

namespace winnow {

// One document of a prompt.
struct DocumentUse {
  std::string id;
  int64_t tokens = 0;
  int64_t kept = 0;  // tokens that every layer read; none before the first token of the answer
  // Share of the observers' attention to all chunks that might have been dropped, summed over this
  // document's; NaN: there was none, or nobody looked.
  double mass = 0;
};

// `first_token`: of `prompt` in the request's tokens. Without `pruning` everything is kept.
std::vector<DocumentUse> UseOfDocuments(const Prompt& prompt, int64_t first_token,
                                        const PruneLedger* pruning);

// What was dropped, or why nothing was: a phrase, without a full stop.
std::string PruningInWords(const PruneLedger& pruning);

// A line on what was dropped, or why nothing was, a bar for each document, what the audit says, and
// what it took beside what was foreseen.
std::string FormatPruning(const PruneLedger& pruning, const std::vector<DocumentUse>& documents);

}  // namespace winnow
