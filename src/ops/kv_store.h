// Writes new keys and values into the pages of a sequence, converted to the cache's type.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"

namespace winnow {

// Stores k and v, [T, K, D] each, as tokens first..first+T-1 of `layer`, which Append has already
// made room for. f16 rounds to nearest even; q8_0 is ggml's quantisation. Throws nothing; CHECKs
// shapes.
void StoreKv(SequenceKv* kv, int layer, int64_t first, TensorView<const float, 3> k,
             TensorView<const float, 3> v);

// Reads token `token` of KV head `head` back as f32: k [D] and v [D] (tests, diagnostics).
void LoadKv(const PagedKv& kv, int head, int64_t token, float* k, float* v);

}  // namespace winnow
