// The CPU kernel behind PrefillAttention: one block of queries of one KV head, start to end.
#pragma once

#include <cstdint>
#include <span>

#include "ops/prefill_attention.h"

namespace winnow {

// Rows of a task (a row is one query of one query head). More rows share one conversion of keys and
// values to f32, which takes 16% of the time at 96 rows and 6% at 384; fewer make more tasks.
inline constexpr int64_t kMinPrefillTaskRows = 96;
inline constexpr int64_t kMaxPrefillTaskRows = 384;
// What every instruction set computes together is a divisor of this.
inline constexpr int64_t kPrefillRowUnit = 48;

// Queries [first, first + n) of the R = H/K query heads that share KV head `head`.
struct PrefillTask {
  int head = 0;
  int64_t first = 0;
  int64_t n = 0;
};

// Floats of scratch that a task of up to `rows` rows needs on any instruction set.
int64_t PrefillScratchFloats(int64_t rows, int64_t head_dim);

// Writes out and log_mass of the task's rows. `scratch` is 64-byte aligned and as large as said
// above; its contents do not matter. The caller checked the parameters.
void RunPrefillTask(const PrefillAttentionParams& params, const PrefillTask& task,
                    std::span<float> scratch);

}  // namespace winnow
