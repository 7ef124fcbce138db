#include "attention/prefill.h"

#include "core/check.h"
#include "core/error.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"

namespace winnow {

int64_t FirstVisible(const SequenceKv& kv, int layer, int64_t window, int32_t position,
                     int64_t from) {
  if (window == 0) return 0;
  int64_t token = std::max(from, kv.first_resident(layer));
  while (token < kv.n_tokens(layer) && position - kv.position(layer, token) >= window) ++token;
  return token;
}

void ReleasePassed(SequenceKv* kv, int layer, int64_t window, int page_slots) {
  if (window == 0) return;
  const int64_t first = kv->n_tokens(layer) - window - page_slots;
  if (first > 0) kv->ReleaseBefore(layer, first);
}

void PrefillPipeline::Run(const PrefillQuantum& quantum, StageSeconds* seconds,
                          AttentionAccount* account) {
  const ModelConfig& config = backbone_->config();
  const int64_t n_tokens = quantum.hidden.shape[0];
  const int64_t first_token = quantum.kv->n_tokens(quantum.layer);
  const int64_t window = config.layers[quantum.layer].window;
  WINNOW_CHECK(static_cast<int64_t>(quantum.positions.size()) == n_tokens);
  WINNOW_CHECK(0 <= quantum.first_output && quantum.first_output <= n_tokens);

  Qkv qkv;
  {
    ScopedTimer timer(seconds->attention_input);
    qkv = backbone_->AttentionInput(quantum.layer, quantum.hidden, quantum.positions);
  }
  {
    ScopedTimer timer(seconds->kv_append);
    if (!quantum.kv->Append(quantum.layer, quantum.positions)) {
      Throw(ErrorKind::kResource, "the page pool is full");
    }
    StoreKv(quantum.kv, quantum.layer, first_token, qkv.k, qkv.v);
    if (quantum.memory != nullptr && quantum.memory->sees_prompt()) {
      quantum.memory->SeePrompt(quantum.layer, qkv);
    }
    UpdatePlanes(*pool_, quantum.kv, quantum.layer, first_token, first_token + n_tokens);
  }
  if (quantum.probe != nullptr && quantum.probe->on_prompt) {
    quantum.probe->on_prompt(quantum.layer, first_token, qkv.q);
  }
  const int64_t n_outputs = n_tokens - quantum.first_output;
  if (n_outputs > 0) {
    attention_.Resize(n_outputs * config.query_heads * config.head_dim);
    TensorView<float, 3> attention(attention_.data(),
                                   {n_outputs, config.query_heads, config.head_dim});
    {
      ScopedTimer timer(seconds->attention);
      begin_.clear();
      end_.clear();
      int64_t visible = 0;
      for (int64_t t = quantum.first_output; t < n_tokens; ++t) {
        visible = FirstVisible(*quantum.kv, quantum.layer, window, quantum.positions[t], visible);
        begin_.push_back(visible);
        end_.push_back(first_token + t + 1);
      }
      PrefillAttention(*pool_,
                       {.q = qkv.q.Slice(quantum.first_output, n_tokens),
                        .out = attention,
                        .kv = quantum.kv->View(quantum.layer),
                        .begin = begin_,
                        .end = end_,
                        .scale = config.attention_scale},
                       workspace_, account);
    }
    ScopedTimer timer(seconds->attention_output);
    backbone_->AttentionOutput(quantum.layer, attention,
                               quantum.hidden.Slice(quantum.first_output, n_tokens));
  }
  ReleasePassed(quantum.kv, quantum.layer, window, quantum.kv->View(quantum.layer).layout->slots);
}

}  // namespace winnow
