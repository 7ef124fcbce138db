// From which depth on an arm's decode attention is faster than reading everything, timed on this
// machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/parallel.h"
#include "model/config.h"
#include "policy/auto_arm.h"

namespace winnow {

// Seconds that decode attention of one layer takes for one token behind `depth` others.
struct AttentionTime {
  int64_t depth = 0;
  double dense = 0;
  double sparse = 0;
  bool operator==(const AttentionTime&) const = default;
};

struct BreakEven {
  int64_t tokens = kNeverPays;
  std::vector<AttentionTime> times;  // by depth
  bool operator==(const BreakEven&) const = default;
};

// Where the lines through the times (least squares, each side's time being nearly linear in depth)
// cross, rounded up to a multiple of 64; not below the smallest depth, where nothing was timed.
// kNeverPays if dense is faster at the largest depth and its line is no steeper. At least two
// depths.
int64_t BreakEvenTokens(std::span<const AttentionTime> times);

// Times both on random keys and values, as many layers of the model in turn as 256 MiB hold (so
// that no cache holds them; it takes a fraction of a second), at three depths up to 4,096 or
// `context_tokens`. Queries are scaled so that scores spread by two nats: with less, completion has
// more to read than in trained models, with more, less. Planes are taken as written: a page's are
// written once in 32 steps, and in the prefill. kNeverPays without times if the context is shorter
// than 1,024 tokens or no layer is sparse. `arm` is not dense. Throws as ParseArm, and
// Error(kResource) for lack of memory.
BreakEven MeasureBreakEven(ThreadPool* pool, const ModelConfig& config, DType kv_dtype,
                           const std::string& arm, int64_t context_tokens);

}  // namespace winnow
