// The generators behind Task::make, one file each (see there for the prompt it writes).
#pragma once

#include "eval/task.h"

namespace winnow {

EvalSample MakeNeedle(const TaskInput& input);            // needle.cc
EvalSample MakeMultikeyNeedle(const TaskInput& input);    // needle.cc
EvalSample MakeVariableTracking(const TaskInput& input);  // variable_tracking.cc
EvalSample MakeFrequentWords(const TaskInput& input);     // frequent_words.cc
EvalSample MakeKeyValue(const TaskInput& input);          // key_value.cc
EvalSample MakeBook(const TaskInput& input);              // book_continuation.cc

}  // namespace winnow
