#include "attention/decode.h"

#include "attention/prefill.h"
#include "core/check.h"
#include "core/error.h"
#include "ops/kv_store.h"

namespace winnow {

void DecodePipeline::Run(std::span<const DecodeSlot> slots, TensorView<float, 2> hidden,
                         StageSeconds* seconds) {
  const ModelConfig& config = backbone_->config();
  WINNOW_CHECK(static_cast<int64_t>(slots.size()) == hidden.shape[0]);
  positions_.clear();
  for (const DecodeSlot& slot : slots) positions_.push_back(slot.position);
  attention_.Resize(slots.size() * config.query_heads * config.head_dim);
  for (int layer = 0; layer < config.n_layers; ++layer) RunLayer(layer, slots, hidden, seconds);
}

void DecodePipeline::RunLayer(int layer, std::span<const DecodeSlot> slots,
                              TensorView<float, 2> hidden, StageSeconds* seconds) {
  const ModelConfig& config = backbone_->config();
  Qkv qkv;
  {
    ScopedTimer timer(seconds->attention_input);
    qkv = backbone_->AttentionInput(layer, hidden, positions_);
  }
  {
    ScopedTimer timer(seconds->kv_append);
    StoreLayer(layer, slots, qkv);
  }
  {
    ScopedTimer timer(seconds->attention);
    AttendLayer(layer, slots, qkv);
  }
  {
    ScopedTimer timer(seconds->attention_output);
    const TensorView<const float, 3> attention(
        attention_.data(),
        {static_cast<int64_t>(slots.size()), config.query_heads, config.head_dim});
    backbone_->AttentionOutput(layer, attention, hidden);
  }
}

void DecodePipeline::StoreLayer(int layer, std::span<const DecodeSlot> slots, const Qkv& qkv) {
  for (size_t b = 0; b < slots.size(); ++b) {
    SequenceKv* kv = slots[b].kv;
    const int64_t token = kv->n_tokens(layer);
    if (!kv->Append(layer, std::span(&slots[b].position, 1))) {
      Throw(ErrorKind::kResource, "the page pool is full");
    }
    const auto row = static_cast<int64_t>(b);
    StoreKv(kv, layer, token, qkv.k.Slice(row, row + 1), qkv.v.Slice(row, row + 1));
  }
}

void DecodePipeline::AttendLayer(int layer, std::span<const DecodeSlot> slots, const Qkv& qkv) {
  const ModelConfig& config = backbone_->config();
  const int64_t window = config.layers[layer].window;
  const int64_t row_floats = static_cast<int64_t>(config.query_heads) * config.head_dim;
  queries_.clear();
  for (size_t b = 0; b < slots.size(); ++b) {
    SequenceKv* kv = slots[b].kv;
    const int64_t end = kv->n_tokens(layer);
    const int64_t begin = FirstVisible(*kv, layer, window, slots[b].position,
                                       std::max<int64_t>(0, window == 0 ? 0 : end - window));
    const PagedKv view = kv->View(layer);
    const int64_t bytes = view.layout->TokenBytes(end - begin);
    if (slots[b].account != nullptr) {
      *slots[b].account += {.tokens_read = end - begin,
                            .tokens_resident = end - begin,
                            .bytes_read = bytes,
                            .bytes_dense = bytes};
    }
    queries_.push_back({.q = qkv.q.row(static_cast<int64_t>(b)),
                        .kv = view,
                        .begin = begin,
                        .end = end,
                        .out = attention_.data() + static_cast<int64_t>(b) * row_floats});
  }
  DecodeAttention(*pool_, queries_,
                  {.query_heads = config.query_heads, .scale = config.attention_scale}, workspace_,
                  nullptr);
  for (const DecodeSlot& slot : slots) {
    ReleasePassed(slot.kv, layer, window, slot.kv->View(layer).layout->slots);
  }
}

}  // namespace winnow
