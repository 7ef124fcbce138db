// One decode step: one new token of each sequence of a batch through all layers, stage by stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_probe.h"
#include "attention/sparse_decode.h"
#include "core/account.h"
#include "core/parallel.h"
#include "core/tensor_view.h"
#include "kv/sequence_kv.h"
#include "model/backbone.h"
#include "ops/decode_attention.h"

namespace winnow {

struct DecodeSlot {
  SequenceKv* kv = nullptr;
  int32_t position = 0;
  DecodePolicy* policy = nullptr;    // null: dense
  ResidualMemory* memory = nullptr;  // of the policy's residual and this sequence; may be null
  int64_t n_generated = 0;           // tokens after the prompt, the new one included
  AttentionAccount* account = nullptr;
  const AttentionProbe* probe = nullptr;  // null: nobody watches
};

class DecodePipeline {
 public:
  // Both outlive the pipeline.
  DecodePipeline(Backbone* backbone, ThreadPool* pool)
      : backbone_(backbone), pool_(pool), sparse_(pool) {}

  // hidden [B, E]: in, the embeddings of the tokens; out, the last layer's output. Appends one
  // token to every layer of every slot. Throws Error(kResource) if the pool is full: the caller
  // rolls back.
  void Run(std::span<const DecodeSlot> slots, TensorView<float, 2> hidden, StageSeconds* seconds);

 private:
  void RunLayer(int layer, std::span<const DecodeSlot> slots, TensorView<float, 2> hidden,
                StageSeconds* seconds);
  void StoreLayer(int layer, std::span<const DecodeSlot> slots, const Qkv& qkv);
  void AttendLayer(int layer, std::span<const DecodeSlot> slots, const Qkv& qkv,
                   StageSeconds* seconds);
  // The queries of those slots that read everything.
  void AddDenseQuery(int layer, const DecodeSlot& slot, const float* q, float* out);
  // Those that share `policy`, from slot `first` on; marks them done.
  void AttendSparse(int layer, std::span<const DecodeSlot> slots, size_t first, const Qkv& qkv,
                    StageSeconds* seconds);

  Backbone* backbone_;
  ThreadPool* pool_;
  DecodeWorkspace workspace_;
  AlignedBuffer<float> attention_;  // [B, H, D]
  std::vector<int32_t> positions_;
  std::vector<DecodeQuery> queries_;
  SparseDecode sparse_;
  std::vector<SparseSlot> sparse_slots_;
  std::vector<bool> pending_;  // [B] sparse slots of this layer that are still to be computed
};

}  // namespace winnow
