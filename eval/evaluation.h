// An evaluation: tasks × lengths × samples, each under every arm.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "eval/arm_runs.h"
#include "eval/task.h"

namespace winnow {

struct Evaluation {
  std::vector<const Task*> tasks;
  std::vector<int64_t> lengths;
  int64_t samples = 20;           // of each task and length
  std::vector<EvalSample> given;  // read from a file, after the tasks
  TaskInput input;                // its length and index are set for each sample
  std::vector<std::string> arms;  // ReferenceFirst

  int64_t total() const {
    return static_cast<int64_t>(tasks.size() * lengths.size()) * samples +
           static_cast<int64_t>(given.size());
  }
};

struct EvaluationHooks {
  ArmRunHooks arms;
  // Before a sample runs: its number from 0.
  std::function<void(int64_t number, const EvalSample&)> on_start;
  // After a sample has run under every arm.
  std::function<void(const EvalSample&, const std::vector<ArmRun>&)> on_sample;
};

// Throws, before anything is run: Error(kInput) for a length beyond `context_tokens`, for a task
// that needs text where there is none, and what the first sample of each task and length throws.
void CheckEvaluation(const Evaluation& evaluation, int64_t context_tokens);

// Task by task, length by length, sample by sample. False if it was stopped: the sample at hand is
// dropped. Throws what RunArms throws.
bool RunEvaluation(Engine* engine, const Evaluation& evaluation, const EvaluationHooks& hooks);

}  // namespace winnow
