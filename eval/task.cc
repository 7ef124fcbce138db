#include "eval/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/rng.h"
#include "eval/generators.h"
#include "policy/nearest_name.h"

namespace winnow {

const std::vector<Task>& AllTasks() {
  static const std::vector<Task> kTasks = {
      {"needle", "one number hidden in book text", true, &MakeNeedle, true},
      {"multikey", "four numbers hidden in book text, one asked for", true, &MakeMultikeyNeedle,
       true},
      {"variables", "all names of a value, through a chain of assignments", false,
       &MakeVariableTracking},
      {"frequent", "the three most frequent made-up words of a list", false, &MakeFrequentWords},
      {"keyvalue", "one value of a JSON object of random identifiers", false, &MakeKeyValue},
      {"book", "the next tokens of a book: fidelity only", true, &MakeBook},
  };
  return kTasks;
}

const Task& FindTask(std::string_view name) {
  std::vector<std::string> names;
  for (const Task& task : AllTasks()) {
    if (task.name == name) return task;
    names.emplace_back(task.name);
  }
  Throw(ErrorKind::kUsage, "{}", UnknownName("task", name, names));
}

EvalSample MakeSample(const Task& task, TaskInput input, int64_t index) {
  // Two rounds of SplitMix64 keep the streams of neighbouring seeds apart.
  input.seed = Rng(Rng(input.seed).Next() + static_cast<uint64_t>(index)).Next();
  EvalSample sample = task.make(input);
  sample.task = task.name;
  sample.length = input.length;
  sample.index = index;
  sample.cluster = static_cast<uint64_t>(index);
  return sample;
}

}  // namespace winnow
