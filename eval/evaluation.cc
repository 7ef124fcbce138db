#include "eval/evaluation.h"

#include "core/error.h"

namespace winnow {
namespace {

EvalSample Make(const Evaluation& evaluation, const Task& task, int64_t length, int64_t index) {
  TaskInput input = evaluation.input;
  input.length = length;
  return MakeSample(task, input, index);
}

}  // namespace

void CheckEvaluation(const Evaluation& evaluation, int64_t context_tokens) {
  for (const int64_t length : evaluation.lengths) {
    if (length > context_tokens) {
      Throw(ErrorKind::kInput,
            "a length of {} tokens is beyond the context of {}: ask for less, raise --ctx, or use "
            "a model with a longer context",
            length, context_tokens);
    }
  }
  for (const Task* task : evaluation.tasks) {
    if (task->needs_text && evaluation.input.book->empty()) {
      Throw(ErrorKind::kInput, "the task {} needs book text: give files or a folder with --text",
            task->name);
    }
    for (const int64_t length : evaluation.lengths) Make(evaluation, *task, length, 0);
  }
}

bool RunEvaluation(Engine* engine, const Evaluation& evaluation, const EvaluationHooks& hooks) {
  int64_t number = 0;
  const auto run = [&](const EvalSample& sample) {
    if (hooks.on_start) hooks.on_start(number, sample);
    ++number;
    const auto runs = RunArms(engine, sample, evaluation.arms, {}, hooks.arms);
    if (!runs.has_value()) return false;
    if (hooks.on_sample) hooks.on_sample(sample, *runs);
    return true;
  };
  for (const Task* task : evaluation.tasks) {
    for (const int64_t length : evaluation.lengths) {
      for (int64_t i = 0; i < evaluation.samples; ++i) {
        if (!run(Make(evaluation, *task, length, i))) return false;
      }
    }
  }
  for (const EvalSample& sample : evaluation.given) {
    if (!run(sample)) return false;
  }
  return true;
}

}  // namespace winnow
