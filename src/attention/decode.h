// One decode step: one new token of each sequence of a batch through all layers, stage by stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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
  AttentionAccount* account = nullptr;
};

class DecodePipeline {
 public:
  // Both outlive the pipeline.
  DecodePipeline(Backbone* backbone, ThreadPool* pool) : backbone_(backbone), pool_(pool) {}

  // hidden [B, E]: in, the embeddings of the tokens; out, the last layer's output. Appends one
  // token to every layer of every slot. Throws Error(kResource) if the pool is full: the caller
  // rolls back.
  void Run(std::span<const DecodeSlot> slots, TensorView<float, 2> hidden, StageSeconds* seconds);

 private:
  void RunLayer(int layer, std::span<const DecodeSlot> slots, TensorView<float, 2> hidden,
                StageSeconds* seconds);
  void StoreLayer(int layer, std::span<const DecodeSlot> slots, const Qkv& qkv);
  void AttendLayer(int layer, std::span<const DecodeSlot> slots, const Qkv& qkv);

  Backbone* backbone_;
  ThreadPool* pool_;
  DecodeWorkspace workspace_;
  AlignedBuffer<float> attention_;  // [B, H, D]
  std::vector<int32_t> positions_;
  std::vector<DecodeQuery> queries_;
};

}  // namespace winnow
