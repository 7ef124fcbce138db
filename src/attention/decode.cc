#include "attention/decode.h"

#include "attention/prefill.h"
#include "core/check.h"
#include "core/error.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"

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
  AttendLayer(layer, slots, qkv, seconds);
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
    UpdatePlanes(*pool_, kv, layer, token, token + 1);
  }
}

void DecodePipeline::AttendLayer(int layer, std::span<const DecodeSlot> slots, const Qkv& qkv,
                                 StageSeconds* seconds) {
  const ModelConfig& config = backbone_->config();
  const int64_t window = config.layers[layer].window;
  const int64_t row_floats = static_cast<int64_t>(config.query_heads) * config.head_dim;
  const auto out = [&](size_t b) {
    return attention_.data() + static_cast<int64_t>(b) * row_floats;
  };
  queries_.clear();
  pending_.assign(slots.size(), false);
  for (size_t b = 0; b < slots.size(); ++b) {
    const AttentionProbe* probe = slots[b].probe;
    if (probe != nullptr && probe->on_token) {
      const auto row = static_cast<int64_t>(b);
      probe->on_token(layer, qkv.q.Slice(row, row + 1).span(), slots[b].kv->View(layer));
    }
    // A local layer reads its window, which is short.
    pending_[b] = slots[b].policy != nullptr && window == 0 &&
                  SparseDecode::Applies(*slots[b].policy, layer, slots[b].kv->n_tokens(layer),
                                        slots[b].n_generated, slots[b].kv->pool().layout().slots);
    if (!pending_[b]) AddDenseQuery(layer, slots[b], qkv.q.row(static_cast<int64_t>(b)), out(b));
  }
  {
    ScopedTimer timer(seconds->attention);
    DecodeAttention(*pool_, queries_,
                    {.query_heads = config.query_heads, .scale = config.attention_scale},
                    workspace_, nullptr);
  }
  for (size_t b = 0; b < slots.size(); ++b) {
    if (pending_[b]) AttendSparse(layer, slots, b, qkv, seconds);
  }
  for (const DecodeSlot& slot : slots) {
    ReleasePassed(slot.kv, layer, window, slot.kv->View(layer).layout->slots);
  }
}

void DecodePipeline::AddDenseQuery(int layer, const DecodeSlot& slot, const float* q, float* out) {
  const int64_t window = backbone_->config().layers[layer].window;
  const int64_t end = slot.kv->n_tokens(layer);
  const int64_t begin = FirstVisible(*slot.kv, layer, window, slot.position,
                                     std::max<int64_t>(0, window == 0 ? 0 : end - window));
  const PagedKv view = slot.kv->View(layer);
  const int64_t bytes = view.layout->TokenBytes(end - begin);
  if (slot.account != nullptr) {
    *slot.account += {.tokens_read = end - begin,
                      .tokens_resident = end - begin,
                      .bytes_read = bytes,
                      .bytes_dense = bytes,
                      .layers_dense = 1};
  }
  queries_.push_back({.q = q, .kv = view, .begin = begin, .end = end, .out = out});
}

void DecodePipeline::AttendSparse(int layer, std::span<const DecodeSlot> slots, size_t first,
                                  const Qkv& qkv, StageSeconds* seconds) {
  const ModelConfig& config = backbone_->config();
  const int64_t row_floats = static_cast<int64_t>(config.query_heads) * config.head_dim;
  DecodePolicy* policy = slots[first].policy;
  sparse_slots_.clear();
  for (size_t b = first; b < slots.size(); ++b) {
    if (!pending_[b] || slots[b].policy != policy) continue;
    pending_[b] = false;
    sparse_slots_.push_back({.query = {.q = qkv.q.row(static_cast<int64_t>(b)),
                                       .kv = slots[b].kv->View(layer),
                                       .super_pages = slots[b].kv->SuperPages(layer),
                                       .memory = slots[b].memory},
                             .n_generated = slots[b].n_generated,
                             .out = attention_.data() + static_cast<int64_t>(b) * row_floats,
                             .account = slots[b].account});
  }
  sparse_.Attend(*policy, layer,
                 {.query_heads = config.query_heads, .scale = config.attention_scale},
                 sparse_slots_, seconds);
}

}  // namespace winnow
