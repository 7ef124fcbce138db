// The CPU kernel of decode attention: one KV head over one split of the tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/sequence_kv.h"

namespace winnow {

// Tokens are split at multiples of this number, whatever the range, the threads or the page size.
// On two threads 256 leaves at most a task of a few µs of imbalance, and merging costs less than a
// percent.
inline constexpr int64_t kDecodeSplitTokens = 256;

// Rows of queries and of partial states are padded to a multiple of this many floats, the widest
// vector; the padding of queries is zero.
inline constexpr int64_t kDecodeRowPadding = 16;

struct DecodeTask {
  const PagedKv* kv = nullptr;
  int head = 0;       // KV head
  int64_t begin = 0;  // tokens [begin, end), not empty, at most kDecodeSplitTokens
  int64_t end = 0;
  int group_heads = 0;       // R
  int64_t row_floats = 0;    // D rounded up to kDecodeRowPadding
  const float* q = nullptr;  // [R, row_floats], scaled
  // Rows of keys that this thread is likely to read next, to be prefetched; a wrong guess costs
  // only time.
  const std::byte* next_keys = nullptr;
  float* out = nullptr;  // [R, row_floats]: normalised partial outputs; the padding is undefined
  float* log_mass = nullptr;  // [R]
};

void DecodeTaskCpu(const DecodeTask& task);

}  // namespace winnow
