// From which depth on an arm's decode attention is faster than reading everything, timed on this
// machine.
#pragma once

#include <cstdint>
#include <optional>
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

// Seconds of one layer, a round each, at least one.
struct LayerTimes {
  std::vector<double> dense;
  std::vector<double> sparse;
};
// What the rounds at one depth say, at least one layer: of either side the mean over the layers of
// the fastest. Nothing if the medians have another ratio, by more than 1.15: then something else
// was running, and not beside both alike.
std::optional<AttentionTime> AgreedTime(int64_t depth, std::span<const LayerTimes> layers);

// The depth from which on the arm is faster at every depth timed: between two of them by a straight
// line, rounded up to a multiple of 64. (One line through all would be wrong: dense slows down by
// more than the depth where a cache no longer holds the layers.) The smallest depth if it is faster
// everywhere. If it is not even at the largest, the line through the last two goes on; kNeverPays
// if its gain does not grow. At least two depths, ascending.
int64_t BreakEvenTokens(std::span<const AttentionTime> times);

// Times both on random keys and values, as many layers of the model in turn as 256 MiB hold (so
// that no cache holds them; about a second), at three depths up to 4,096 or `context_tokens`, again
// until its rounds agree, for some seconds. Nothing if they do not: the machine is too busy.
// Queries are scaled so that scores spread by two nats: with less, completion has
// more to read than in trained models, with more, less. Planes are taken as written: a page's are
// written once in 32 steps, and in the prefill. kNeverPays without times if the context is shorter
// than 1,024 tokens or no layer is sparse. `arm` is not dense. Throws as ParseArm, and
// Error(kResource) for lack of memory.
std::optional<BreakEven> MeasureBreakEven(ThreadPool* pool, const ModelConfig& config,
                                          DType kv_dtype, const std::string& arm,
                                          int64_t context_tokens);

}  // namespace winnow
