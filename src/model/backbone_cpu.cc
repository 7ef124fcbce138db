#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <new>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "model/architecture.h"
#include "model/backbone.h"
#include "model/gguf_file.h"
#include "model/piece_graphs.h"
#include "model/weights.h"

namespace winnow {
namespace {

// How many different T keep their graphs: the chunk of a prefill, its rest, decoding, one to spare.
// A graph takes about 20 KB.
constexpr size_t kCachedTokenCounts = 4;

class CpuBackbone : public Backbone {
 public:
  CpuBackbone(const GgufFile& file, ThreadPool* pool, const BackboneOptions& options)
      : config_(ReadModelConfig(file)),
        architecture_(FindArchitecture(file)),
        weights_(LoadWeights(file, config_)),
        scratch_(config_, options.max_tokens, pool->size()),
        pool_(pool),
        max_tokens_(options.max_tokens) {}

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return weights_.bytes; }
  int64_t max_tokens() const override { return max_tokens_; }

  void Embed(std::span<const int32_t> tokens, TensorView<float, 2> hidden) override;
  Qkv AttentionInput(int layer, TensorView<const float, 2> hidden,
                     std::span<const int32_t> positions) override;
  void AttentionOutput(int layer, TensorView<const float, 3> attention,
                       TensorView<float, 2> hidden) override;
  void Logits(TensorView<const float, 2> hidden, TensorView<float, 2> logits) override;

 private:
  // The graphs for one T, built when first needed.
  struct Graphs {
    int64_t n_tokens = 0;
    std::vector<PieceGraph> input;   // [L]
    std::vector<PieceGraph> output;  // [L]
    PieceGraph logits;
  };

  PieceInputs Inputs() { return {architecture_, config_, weights_, scratch_, pool_->size()}; }
  Graphs& GraphsFor(int64_t n_tokens);
  void Run(PieceGraph& piece) {
    for (const auto& gemv : piece.gemvs) gemv->Reset();
    pool_->Compute(piece.graph);
  }
  void Check(int layer, int64_t n_tokens, int64_t width) const {
    WINNOW_CHECK(0 <= layer && layer < config_.n_layers, "layer {}", layer);
    WINNOW_CHECK(1 <= n_tokens && n_tokens <= max_tokens_, "{} tokens", n_tokens);
    WINNOW_CHECK(width == config_.hidden, "hidden states of {} values", width);
  }

  ModelConfig config_;
  const Architecture& architecture_;
  ModelWeights weights_;
  Scratch scratch_;
  ThreadPool* pool_;
  int64_t max_tokens_;
  std::list<Graphs> graphs_;  // most recently used first
};

// ggml only reads through the tensors that these are given to.
void* Address(const void* p) { return const_cast<void*>(p); }

CpuBackbone::Graphs& CpuBackbone::GraphsFor(int64_t n_tokens) {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const Graphs& g) { return g.n_tokens == n_tokens; });
  if (found != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, found);
  } else {
    if (graphs_.size() == kCachedTokenCounts) graphs_.pop_back();
    Graphs& graphs = graphs_.emplace_front();
    graphs.n_tokens = n_tokens;
    graphs.input.resize(config_.n_layers);
    graphs.output.resize(config_.n_layers);
  }
  return graphs_.front();
}

void CpuBackbone::Embed(std::span<const int32_t> tokens, TensorView<float, 2> hidden) {
  const auto n = static_cast<int64_t>(tokens.size());
  WINNOW_CHECK(hidden.shape[0] == n && hidden.shape[1] == config_.hidden);
  const ggml_tensor* embedding = weights_.embedding;
  const auto* table = static_cast<const char*>(embedding->data);
  const ggml_to_float_t to_float = ggml_get_type_traits(embedding->type)->to_float;
  pool_->ForEach(n, [&](int64_t t, int /*thread*/) {
    WINNOW_CHECK(0 <= tokens[t] && tokens[t] < config_.vocabulary, "token {}", tokens[t]);
    const char* source = table + tokens[t] * embedding->nb[1];
    float* out = hidden.row(t);
    if (embedding->type == GGML_TYPE_F32) {
      std::memcpy(out, source, config_.hidden * sizeof(float));
    } else {
      to_float(source, out, config_.hidden);
    }
    if (config_.embedding_scale == 1.0f) return;
    for (int i = 0; i < config_.hidden; ++i) out[i] *= config_.embedding_scale;
  });
}

Qkv CpuBackbone::AttentionInput(int layer, TensorView<const float, 2> hidden,
                                std::span<const int32_t> positions) {
  const int64_t n = hidden.shape[0];
  Check(layer, n, hidden.shape[1]);
  WINNOW_CHECK(static_cast<int64_t>(positions.size()) == n);
  PieceGraph& piece = GraphsFor(n).input[layer];
  if (piece.graph == nullptr) piece = BuildAttentionInput(Inputs(), layer, n);
  for (ggml_tensor* tensor : piece.hidden) tensor->data = Address(hidden.data);
  piece.positions->data = Address(positions.data());
  Run(piece);
  const auto view = [&](const ggml_tensor* tensor, int64_t heads) {
    return TensorView<const float, 3>(static_cast<const float*>(tensor->data),
                                      {n, heads, config_.head_dim});
  };
  return {.q = view(piece.q, config_.query_heads),
          .k = view(piece.k, config_.kv_heads),
          .v = view(piece.v, config_.kv_heads)};
}

void CpuBackbone::AttentionOutput(int layer, TensorView<const float, 3> attention,
                                  TensorView<float, 2> hidden) {
  const int64_t n = hidden.shape[0];
  Check(layer, n, hidden.shape[1]);
  WINNOW_CHECK(attention.shape[0] == n && attention.shape[1] == config_.query_heads &&
               attention.shape[2] == config_.head_dim);
  PieceGraph& piece = GraphsFor(n).output[layer];
  if (piece.graph == nullptr) piece = BuildAttentionOutput(Inputs(), layer, n);
  for (ggml_tensor* tensor : piece.hidden) tensor->data = hidden.data;
  piece.attention->data = Address(attention.data);
  Run(piece);
}

void CpuBackbone::Logits(TensorView<const float, 2> hidden, TensorView<float, 2> logits) {
  const int64_t n = hidden.shape[0];
  Check(0, n, hidden.shape[1]);
  WINNOW_CHECK(logits.shape[0] == n && logits.shape[1] == config_.vocabulary);
  PieceGraph& piece = GraphsFor(n).logits;
  if (piece.graph == nullptr) piece = BuildLogits(Inputs(), n);
  for (ggml_tensor* tensor : piece.hidden) tensor->data = Address(hidden.data);
  for (ggml_tensor* tensor : piece.logits) tensor->data = logits.data;
  Run(piece);
}

}  // namespace

std::unique_ptr<Backbone> LoadCpuBackbone(const std::string& path, ThreadPool* pool,
                                          const BackboneOptions& options) {
  WINNOW_CHECK(pool != nullptr && options.max_tokens >= 1);
  const GgufFile file(path);
  try {
    return std::make_unique<CpuBackbone>(file, pool, options);
  } catch (const std::bad_alloc&) {
    Throw(ErrorKind::kResource, "not enough memory to load {}", path);
  }
}

}  // namespace winnow
