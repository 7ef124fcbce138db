// Lets a request watch what its attention works on: for `winnow diagnose` and tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/tensor_view.h"
#include "kv/sequence_kv.h"

namespace winnow {

// Queries as the model made them, rotated but not scaled by ModelConfig::attention_scale. Both are
// called between loops of the thread pool, which they may use; each may be empty.
struct AttentionProbe {
  // q [T, H, D] of the prompt's tokens `first` to first + T - 1 in `layer`, for every chunk in
  // order.
  std::function<void(int layer, int64_t first, TensorView<const float, 3> q)> on_prompt;
  // q [H, D] of a decode step in `layer`, and what it may attend to, its own token included. Pages
  // of a local layer's past may be released. A step that was rolled back comes again.
  std::function<void(int layer, std::span<const float> q, const PagedKv& kv)> on_token;
};

}  // namespace winnow
