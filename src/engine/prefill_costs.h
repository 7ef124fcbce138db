// What a layer's prefill, and choosing chunks to drop, take on this machine, timed.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.h"
#include "core/parallel.h"
#include "model/backbone.h"
#include "policy/prefill/prune_forecast.h"

namespace winnow {

// Times one global layer of the model: chunks of `prefill_chunk` tokens behind up to 8,192 others
// (a chunk's keys and values, copied, so that reaching a depth costs nothing), the same without
// attention (the last layer), the scores of a monitored layer, what a removal measures, and copies.
// Again and again for a second and a half, at least twice; again until the pieces agree, for some
// seconds. A model of 8 billion parameters takes half a minute on two cores. Copies and summaries
// that sparse arms keep beside the keys are left out. Nothing if the pieces do not agree (the
// machine is too busy), and for models whose context is shorter than 64 tokens or that have no
// layer to monitor. Throws Error(kResource) for lack of memory.
std::optional<PrefillCosts> MeasurePrefillCosts(Backbone* backbone, ThreadPool* pool,
                                                DType kv_dtype, int64_t prefill_chunk);

}  // namespace winnow
