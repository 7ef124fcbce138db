// A task makes prompts with known answers: one small interface, one generator a file, found by
// name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/book.h"
#include "eval/scoring.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace winnow {

struct TaskPrompt {
  std::vector<TokenId> tokens;
  std::vector<Span> spans;  // of them; the answer's first words, at the end, belong to none
  // First tokens of the chunks that hold what answers the question; none: it is not known.
  std::vector<int64_t> evidence;
};

struct EvalSample : TaskPrompt {
  std::string task;
  int64_t length = 0;  // asked for, prompt and answer together; 0: as long as it came (JSONL)
  int64_t index = 0;   // within its task and length
  int64_t max_new_tokens = 0;
  std::vector<std::string> answers;  // references; none: only fidelity is measured
  Match match = Match::kAll;
  // Not empty: these tokens follow the prompt in place of an answer, max_new_tokens of them.
  std::vector<TokenId> continuation;
  uint64_t cluster = 0;  // samples of a task with the same value share their context
};

// What a generator may use.
struct TaskInput {
  const Tokenizer* tokenizer = nullptr;
  const Book* book = nullptr;  // may be empty if the task needs no text
  PromptOptions prompt;
  int64_t length = 0;  // tokens that prompt and answer may take together
  int64_t continuation_tokens = 200;
  uint64_t seed = 0;
};

struct Task {
  std::string_view name;
  std::string_view summary;  // for help texts
  bool needs_text = false;
  // The sample of a seed: the same input gives the same sample. Sets the prompt, max_new_tokens,
  // answers, match and continuation. Throws Error(kInput) if `length` is too short for the task,
  // or the text for `length`.
  EvalSample (*make)(const TaskInput& input) = nullptr;
  bool calibrates_pruning = false;  // its answers stand in one chunk, which its samples name
};

// All tasks, in the order of help texts and reports.
const std::vector<Task>& AllTasks();

// Throws Error(kUsage) for an unknown name, offering the nearest.
const Task& FindTask(std::string_view name);

// Sample `index` of `task`: `input.seed` and `index` choose it, whatever the length, so that
// lengths differ in their filler only. Throws what Task::make throws.
EvalSample MakeSample(const Task& task, TaskInput input, int64_t index);

}  // namespace winnow
