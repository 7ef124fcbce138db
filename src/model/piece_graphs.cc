#include "model/piece_graphs.h"

#include <ggml.h>

#include <algorithm>

#include "core/check.h"
#include "core/error.h"

namespace winnow {
namespace {

constexpr size_t kMaxNodes = 32;  // the longest piece has 22 nodes and 12 leaves
constexpr size_t kMaxTensors = 48;
// Every stacked matrix's product begins at a multiple of this many floats.
constexpr int64_t kAlignedFloats = kAlignment / sizeof(float);

int64_t QkvRows(const ModelConfig& config) {
  return (int64_t{config.query_heads} + 2 * int64_t{config.kv_heads}) * config.head_dim;
}

int64_t AlignUp(int64_t floats) {
  return (floats + kAlignedFloats - 1) / kAlignedFloats * kAlignedFloats;
}

class Builder {
 public:
  Builder(const PieceInputs& inputs, int64_t n_tokens)
      : inputs_(inputs), config_(inputs.config), n_tokens_(n_tokens) {
    piece_.context.reset(ggml_init({.mem_size = kMaxTensors * ggml_tensor_overhead() +
                                                ggml_graph_overhead_custom(kMaxNodes, false),
                                    .mem_buffer = nullptr,
                                    .no_alloc = true}));
    if (piece_.context == nullptr) Throw(ErrorKind::kResource, "not enough memory for a graph");
    ctx_ = piece_.context.get();
    piece_.graph = ggml_new_graph_custom(ctx_, kMaxNodes, false);
  }

  PieceGraph AttentionInput(int layer);
  PieceGraph AttentionOutput(int layer);
  PieceGraph Logits();

 private:
  static ggml_tensor* At(ggml_tensor* tensor, void* address) {
    tensor->data = address;
    return tensor;
  }
  ggml_tensor* InPlace(ggml_tensor* tensor, const ggml_tensor* of) { return At(tensor, of->data); }
  ggml_tensor* Input(int64_t width) {
    return ggml_new_tensor_2d(ctx_, GGML_TYPE_F32, width, n_tokens_);
  }
  // hidden + x, into hidden.
  ggml_tensor* AddToHidden(ggml_tensor* hidden, ggml_tensor* x) {
    ggml_tensor* sum = ggml_add(ctx_, hidden, x);
    piece_.hidden.push_back(sum);
    return sum;
  }
  // ggml runs the two nodes as one when they follow each other.
  ggml_tensor* Norm(ggml_tensor* x, ggml_tensor* weight, float* address) {
    ggml_tensor* normed = At(ggml_rms_norm(ctx_, x, config_.norm_epsilon), address);
    return At(ggml_mul(ctx_, normed, weight), address);
  }
  // Whether to use the one-token product.
  bool UseGemv(const Linear& linear) const { return n_tokens_ == 1 && Gemv::Supports(linear); }
  ggml_tensor* AddGemv(const Gemv::Options& options, ggml_tensor* x,
                       ggml_tensor* before = nullptr) {
    piece_.gemvs.push_back(
        std::make_unique<Gemv>(options, inputs_.scratch.gemv(), inputs_.n_threads));
    return piece_.gemvs.back()->Node(ctx_, x, before);
  }
  ggml_tensor* Product(const Linear& linear, ggml_tensor* x, float* address) {
    if (UseGemv(linear)) return At(AddGemv({.linear = linear}, x), address);
    ggml_tensor* y = At(ggml_mul_mat(ctx_, linear.weight, x), address);
    if (linear.bias != nullptr) y = InPlace(ggml_add(ctx_, y, linear.bias), y);
    return y;
  }
  // The product of the normed x, which may overwrite `a`.
  ggml_tensor* NormedProduct(const Linear& linear, ggml_tensor* x, ggml_tensor* norm,
                             float* address) {
    if (UseGemv(linear)) {
      return At(AddGemv({.linear = linear, .norm = norm, .epsilon = config_.norm_epsilon}, x),
                address);
    }
    return Product(linear, Norm(x, norm, inputs_.scratch.a()), address);
  }
  // hidden + the product of x, after `post_norm` if there is one, into hidden; may overwrite `a`.
  ggml_tensor* AddProductToHidden(const Linear& linear, ggml_tensor* x, ggml_tensor* post_norm,
                                  ggml_tensor* hidden) {
    if (post_norm == nullptr && UseGemv(linear)) {
      ggml_tensor* sum = AddGemv({.linear = linear, .accumulate = true}, x, hidden);
      piece_.hidden.push_back(sum);
      return sum;
    }
    x = Product(linear, x, inputs_.scratch.a());
    if (post_norm != nullptr) x = Norm(x, post_norm, inputs_.scratch.a());
    return AddToHidden(hidden, x);
  }
  // The products of all matrices with the normed x, one after the other from `address`.
  std::vector<ggml_tensor*> NormedProducts(const StackedLinear& stack, ggml_tensor* x,
                                           ggml_tensor* norm, float* address) {
    const bool one = stack.OneMatrix();
    if (!one) x = Norm(x, norm, inputs_.scratch.a());
    std::vector<ggml_tensor*> products;
    for (const Linear& linear : stack.matrices) {
      products.push_back(one ? NormedProduct(linear, x, norm, address)
                             : Product(linear, x, address));
      address += AlignUp(ggml_nelements(products.back()));
    }
    return products;
  }
  // [T, heads, D] of the rows [row, row + heads * D) of a product.
  ggml_tensor* Heads(ggml_tensor* product, int64_t row, int64_t heads) {
    const int64_t dim = config_.head_dim;
    return ggml_view_3d(ctx_, product, dim, heads, n_tokens_, dim * sizeof(float), product->nb[1],
                        row * sizeof(float));
  }
  ggml_tensor* NormAndRotate(const LayerWeights& weights, const RopeConfig& rope,
                             ggml_tensor* heads, int64_t first_head, float* address);
  void QueriesAndKeys(const LayerWeights& weights, const RopeConfig& rope,
                      const std::vector<ggml_tensor*>& products);
  ggml_tensor* Activate(ggml_tensor* gate, ggml_tensor* up, float* address);
  ggml_tensor* GatedMlp(const LayerWeights& weights, ggml_tensor* hidden);

  PieceGraph Finish(ggml_tensor* last) {
    ggml_build_forward_expand(piece_.graph, last);
    return std::move(piece_);
  }

  const PieceInputs& inputs_;
  const ModelConfig& config_;
  int64_t n_tokens_;
  PieceGraph piece_;
  ggml_context* ctx_ = nullptr;
};

// `heads` [T, n, D] are the heads from `first_head` of the H query heads and K key heads in a row.
ggml_tensor* Builder::NormAndRotate(const LayerWeights& weights, const RopeConfig& rope,
                                    ggml_tensor* heads, int64_t first_head, float* address) {
  if (weights.qk_norm != nullptr) {
    ggml_tensor* norm = ggml_view_2d(ctx_, weights.qk_norm, heads->ne[0], heads->ne[1],
                                     weights.qk_norm->nb[1], first_head * weights.qk_norm->nb[1]);
    heads = Norm(heads, norm, address);
  }
  // No YaRN: neither extrapolation nor an attention factor, so the last four numbers do nothing.
  ggml_tensor* factors = rope.frequency_factors ? inputs_.weights.rope_factors : nullptr;
  const int mode = rope.kind == RopeKind::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  return At(ggml_rope_ext(ctx_, heads, piece_.positions, factors, rope.dims, mode, 0, rope.base,
                          rope.scale, 0.0f, 1.0f, 32.0f, 1.0f),
            address);
}

void Builder::QueriesAndKeys(const LayerWeights& weights, const RopeConfig& rope,
                             const std::vector<ggml_tensor*>& products) {
  const int64_t n_q = config_.query_heads;
  const int64_t n_k = config_.kv_heads;
  const StackedLinear::Part& q = weights.qkv.parts[0];
  const StackedLinear::Part& k = weights.qkv.parts[1];
  const StackedLinear::Part& v = weights.qkv.parts[2];
  if (n_tokens_ == 1 && q.matrix == k.matrix) {
    // One token's queries and keys lie in a row: one rotation for both, in place.
    ggml_tensor* heads = Heads(products[q.matrix], q.row, n_q + n_k);
    ggml_tensor* rotated = NormAndRotate(weights, rope, heads, 0, static_cast<float*>(heads->data));
    ggml_build_forward_expand(piece_.graph, rotated);
    piece_.q = Heads(rotated, 0, n_q);
    piece_.k = Heads(rotated, q.rows, n_k);
    piece_.v = Heads(products[v.matrix], v.row, n_k);
    return;
  }
  float* cursor = inputs_.scratch.c();
  // Where a part is not contiguous in its product, the result goes to memory of its own.
  const auto place = [&](const StackedLinear::Part& part, ggml_tensor* heads) {
    if (ggml_is_contiguous(heads)) return static_cast<float*>(heads->data);
    float* address = cursor;
    cursor += AlignUp(part.rows * n_tokens_);
    return address;
  };
  ggml_tensor* q_heads = Heads(products[q.matrix], q.row, n_q);
  piece_.q = NormAndRotate(weights, rope, q_heads, 0, place(q, q_heads));
  ggml_build_forward_expand(piece_.graph, piece_.q);
  ggml_tensor* k_heads = Heads(products[k.matrix], k.row, n_k);
  piece_.k = NormAndRotate(weights, rope, k_heads, n_q, place(k, k_heads));
  ggml_build_forward_expand(piece_.graph, piece_.k);
  piece_.v = Heads(products[v.matrix], v.row, n_k);
  if (!ggml_is_contiguous(piece_.v)) {
    float* address = place(v, piece_.v);
    piece_.v = At(ggml_cont(ctx_, piece_.v), address);
  }
}

PieceGraph Builder::AttentionInput(int layer) {
  const LayerWeights& weights = inputs_.weights.layers[layer];
  ggml_tensor* hidden = Input(config_.hidden);
  piece_.hidden.push_back(hidden);
  piece_.positions = ggml_new_tensor_1d(ctx_, GGML_TYPE_I32, n_tokens_);
  const std::vector<ggml_tensor*> products =
      NormedProducts(weights.qkv, hidden, weights.attention_norm, inputs_.scratch.b());
  // All products come before any rotation, which may overwrite one in place.
  for (ggml_tensor* product : products) ggml_build_forward_expand(piece_.graph, product);
  QueriesAndKeys(weights, config_.layers[layer].rope, products);
  return Finish(piece_.v);
}

ggml_tensor* Builder::Activate(ggml_tensor* gate, ggml_tensor* up, float* address) {
  return At(inputs_.architecture.activation == Activation::kGelu
                ? ggml_geglu_split(ctx_, gate, up)
                : ggml_swiglu_split(ctx_, gate, up),
            address);
}

// act(gate(x)) * up(x) of the normed hidden states, [T, F] in `c`.
ggml_tensor* Builder::GatedMlp(const LayerWeights& weights, ggml_tensor* hidden) {
  const StackedLinear& stack = weights.gate_up;
  const std::vector<ggml_tensor*> products =
      NormedProducts(stack, hidden, weights.mlp_norm, inputs_.scratch.b());
  const int64_t width = config_.feed_forward;
  // ggml spreads rows over threads; a single token's row is cut into one piece for each, where
  // every piece is whole vectors, so that each value comes from the same instructions as uncut.
  int64_t cuts = 1;
  if (n_tokens_ == 1 && width % (inputs_.n_threads * kAlignedFloats) == 0) cuts = inputs_.n_threads;
  const auto part = [&](int i) {
    ggml_tensor* product = products[stack.parts[i].matrix];
    const size_t row_bytes = cuts == 1 ? product->nb[1] : width / cuts * sizeof(float);
    return ggml_view_2d(ctx_, product, width / cuts, cuts * n_tokens_, row_bytes,
                        stack.parts[i].row * sizeof(float));
  };
  ggml_tensor* active = Activate(part(0), part(1), inputs_.scratch.c());
  return InPlace(ggml_reshape_2d(ctx_, active, width, n_tokens_), active);
}

PieceGraph Builder::AttentionOutput(int layer) {
  const LayerWeights& weights = inputs_.weights.layers[layer];
  piece_.attention = Input(int64_t{config_.query_heads} * config_.head_dim);
  ggml_tensor* hidden = Input(config_.hidden);
  piece_.hidden.push_back(hidden);
  hidden = AddProductToHidden(weights.attention_output, piece_.attention,
                              weights.attention_post_norm, hidden);
  ggml_tensor* active = GatedMlp(weights, hidden);
  return Finish(AddProductToHidden(weights.down, active, weights.mlp_post_norm, hidden));
}

PieceGraph Builder::Logits() {
  ggml_tensor* hidden = Input(config_.hidden);
  piece_.hidden.push_back(hidden);
  const auto add = [&](ggml_tensor* logits) {
    piece_.logits.push_back(logits);
    return logits;
  };
  const Linear& output = inputs_.weights.output;
  ggml_tensor* x = nullptr;
  if (UseGemv(output)) {
    x = add(NormedProduct(output, hidden, inputs_.weights.output_norm, nullptr));
  } else {
    x = Norm(hidden, inputs_.weights.output_norm, inputs_.scratch.a());
    x = add(ggml_mul_mat(ctx_, output.weight, x));
    if (output.bias != nullptr) x = add(ggml_add(ctx_, x, output.bias));
  }
  if (config_.logit_softcap != 0) {
    x = add(ggml_scale(ctx_, x, 1.0f / config_.logit_softcap));
    x = add(ggml_tanh(ctx_, x));
    x = add(ggml_scale(ctx_, x, config_.logit_softcap));
  }
  return Finish(x);
}

}  // namespace

Scratch::Scratch(const ModelConfig& config, int64_t max_tokens, int n_threads)
    : gemv_(n_threads, std::max<int64_t>({config.hidden, config.feed_forward,
                                          int64_t{config.query_heads} * config.head_dim})) {
  const int64_t mlp = config.feed_forward;
  const int64_t slack = 3 * kAlignedFloats;  // up to three products, each aligned
  a_.Resize(max_tokens * config.hidden);
  b_.Resize(max_tokens * std::max(QkvRows(config), 2 * mlp) + slack);
  c_.Resize(max_tokens * std::max(QkvRows(config), mlp) + slack);
}

PieceGraph BuildAttentionInput(const PieceInputs& inputs, int layer, int64_t n_tokens) {
  return Builder(inputs, n_tokens).AttentionInput(layer);
}

PieceGraph BuildAttentionOutput(const PieceInputs& inputs, int layer, int64_t n_tokens) {
  return Builder(inputs, n_tokens).AttentionOutput(layer);
}

PieceGraph BuildLogits(const PieceInputs& inputs, int64_t n_tokens) {
  return Builder(inputs, n_tokens).Logits();
}

}  // namespace winnow
