// Samples from a JSONL file in kvpress's columns.
#pragma once

#include <string>
#include <vector>

#include "eval/task.h"

namespace winnow {

// One sample a line, in order, blank lines left out. Columns: `context`, `question` (either may be
// empty, not both), `answer` or `answers` (a text or a list of texts), `max_new_tokens`; `task`
// ("jsonl" if absent), `answer_prefix` and `match` ("all", "part"; by default "part" for tasks
// whose name begins with "qa", as RULER scores) and `evidence` (passages of the context that answer
// the question: a text or a list) may be absent, other columns are ignored. Of each
// task at most `most` samples are kept; 0: all. Prompts are built as the generators build theirs,
// with `input`'s tokenizer and prompt options. Throws Error(kInput) "FILE:LINE: …" for a line that
// is not JSON, a missing column, one of the wrong type, and for a prompt that does not fit
// `context_tokens` together with its answer; without a line if there is no sample or the file
// cannot be read.
std::vector<EvalSample> ReadJsonl(const std::string& path, const TaskInput& input,
                                  int64_t context_tokens, int64_t most);

}  // namespace winnow
