// One prefill quantum: one layer × one chunk of tokens, stage by stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_probe.h"
#include "core/account.h"
#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"
#include "model/backbone.h"
#include "ops/prefill_attention.h"
#include "policy/residual/residual.h"

namespace winnow {

struct PrefillQuantum {
  SequenceKv* kv = nullptr;
  int layer = 0;
  std::span<const int32_t> positions;  // [T] of the chunk
  TensorView<float, 2> hidden;         // [T, E]: in, of the layer below; out, of this layer
  // Rows before this one are not needed above this layer: their keys and values are stored, and
  // their attention and MLP are left out (the last layer needs only the last token of a prompt).
  int64_t first_output = 0;
  // Sees queries and keys if it wants them; may be null.
  ResidualMemory* memory = nullptr;
  const AttentionProbe* probe = nullptr;  // null: nobody watches
};

class PrefillPipeline {
 public:
  // Both outlive the pipeline.
  PrefillPipeline(Backbone* backbone, ThreadPool* pool) : backbone_(backbone), pool_(pool) {}

  // Appends the chunk's keys and values to the layer and updates `hidden`. The caller made sure
  // that the pool has the pages; throws Error(kResource) otherwise, with the layer as it was. Pages
  // that a local layer's window has passed are released.
  void Run(const PrefillQuantum& quantum, StageSeconds* seconds, AttentionAccount* account);

 private:
  Backbone* backbone_;
  ThreadPool* pool_;
  PrefillWorkspace workspace_;
  AlignedBuffer<float> attention_;
  std::vector<int64_t> begin_;
  std::vector<int64_t> end_;
};

// First token of `layer` that a query at `position` may see, at or after token `from`: position
// minus token position is below the window (0: global, everything).
int64_t FirstVisible(const SequenceKv& kv, int layer, int64_t window, int32_t position,
                     int64_t from);

// Releases what no later query of a local layer can see. One page more than the window stays, so
// that a page-aligned prefix of the sequence can still be continued.
void ReleasePassed(SequenceKv* kv, int layer, int64_t window, int page_slots);

}  // namespace winnow
