// Writes new keys and values into the pages of a sequence, converted to the cache's type.
#pragma once

#include <cstdint>
#include <optional>

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

// The first resident token, by layer and then by order, of which a key or value is not finite, for
// the message of a request that failed on it. Reads everything up to there.
struct KvPlace {
  int layer = 0;
  int64_t token = 0;
  int kv_head = 0;
};
std::optional<KvPlace> FindNotFinite(const SequenceKv& kv);

}  // namespace winnow
