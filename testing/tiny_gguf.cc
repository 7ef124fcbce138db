#include "testing/tiny_gguf.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "core/rng.h"
#include "model/plain_vocabulary.h"

namespace winnow::testing {
namespace {

struct Deleter {
  void operator()(gguf_context* p) const { gguf_free(p); }
  void operator()(ggml_context* p) const { ggml_free(p); }
};

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

ggml_type TypeByName(const std::string& name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    const char* known = ggml_type_name(type);
    if (known != nullptr && name == known) return type;
  }
  throw std::runtime_error("no such ggml type: " + name);
}

class Writer {
 public:
  explicit Writer(const TinyGguf& options)
      : options_(options),
        gguf_(gguf_init_empty()),
        context_(ggml_init({.mem_size = kMemory, .mem_buffer = nullptr, .no_alloc = false})) {
    if (gguf_ == nullptr || context_ == nullptr) throw std::runtime_error("out of memory");
  }

  void Write(const std::string& path) {
    Metadata();
    Tokenizer();
    Tensors();
    for (const std::string& name : options_.omit) gguf_remove_key(gguf_.get(), name.c_str());
    if (!gguf_write_to_file(gguf_.get(), path.c_str(), false)) {
      throw std::runtime_error("cannot write " + path);
    }
  }

 private:
  static constexpr size_t kMemory = size_t{64} << 20;

  bool Is(std::string_view architecture) const { return options_.architecture == architecture; }
  std::string Key(const char* key) const { return options_.architecture + "." + key; }
  void Count(const char* key, int value) {
    gguf_set_val_u32(gguf_.get(), Key(key).c_str(), static_cast<uint32_t>(value));
  }
  void Real(const char* key, float value) {
    gguf_set_val_f32(gguf_.get(), Key(key).c_str(), value);
  }
  void Metadata();
  void Tokenizer();
  void Tensors();
  void Layer(int layer);

  bool Omitted(const std::string& name) const {
    return std::find(options_.omit.begin(), options_.omit.end(), name) != options_.omit.end();
  }
  // Values mean + deviation * N(0, 1), which depend on the seed and the name only.
  void Vector(const std::string& name, int64_t size, double mean, double deviation) {
    if (Omitted(name)) return;
    if (name == options_.misshape) ++size;
    ggml_tensor* tensor = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, size);
    Rng rng(options_.seed ^ HashName(name));
    for (int64_t i = 0; i < size; ++i) {
      static_cast<float*>(tensor->data)[i] = static_cast<float>(mean + deviation * rng.Normal());
    }
    Finish(tensor, name);
  }
  void Norm(const std::string& name, int64_t size) { Vector(name, size, 1.0, 0.2); }
  ggml_type TypeOf(std::string_view name) const {
    const bool other = name.find("attn_v") != name.npos || name.find("ffn_down") != name.npos;
    return TypeByName(other && !options_.value_weight_type.empty() ? options_.value_weight_type
                                                                   : options_.weight_type);
  }
  void Matrix(const std::string& name, int64_t columns, int64_t rows, double deviation);
  void Projection(const std::string& stem, int64_t columns, int64_t rows, bool bias) {
    Matrix(stem + ".weight", columns, rows, 1.0 / std::sqrt(static_cast<double>(columns)));
    if (bias) Vector(stem + ".bias", rows, 0.0, 0.3);
  }
  void Finish(ggml_tensor* tensor, const std::string& name) {
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(gguf_.get(), tensor);
  }

  const TinyGguf& options_;
  std::unique_ptr<gguf_context, Deleter> gguf_;
  std::unique_ptr<ggml_context, Deleter> context_;
};

void Writer::Matrix(const std::string& name, int64_t columns, int64_t rows, double deviation) {
  if (Omitted(name)) return;
  if (name == options_.misshape) ++rows;
  std::vector<float> values(columns * rows);
  Rng rng(options_.seed ^ HashName(name));
  for (float& value : values) value = static_cast<float>(deviation * rng.Normal());
  const ggml_type type = TypeOf(name);
  ggml_tensor* tensor = ggml_new_tensor_2d(context_.get(), type, columns, rows);
  if (type == GGML_TYPE_F64) {  // no weight has it: for tests of wrong types, which read no values
    std::memset(tensor->data, 0, ggml_nbytes(tensor));
  } else {
    const std::vector<float> importance(columns, 1.0f);  // some quantisations insist on one
    ggml_quantize_chunk(type, values.data(), tensor->data, 0, rows, columns, importance.data());
  }
  Finish(tensor, name);
}

void Writer::Metadata() {
  gguf_set_val_str(gguf_.get(), "general.architecture", options_.architecture.c_str());
  gguf_set_val_str(gguf_.get(), "general.name", ("tiny " + options_.architecture).c_str());
  Count("block_count", options_.n_layers);
  Count("context_length", options_.context_length);
  Count("embedding_length", options_.hidden);
  Count("feed_forward_length", options_.feed_forward);
  Count("attention.head_count", options_.query_heads);
  Count("attention.head_count_kv", options_.kv_heads);
  Count("attention.key_length", options_.head_dim);
  Count("attention.value_length", options_.head_dim);
  Count("rope.dimension_count", options_.head_dim);
  Real("attention.layer_norm_rms_epsilon", 1e-5f);
  Real("rope.freq_base", Is("gemma3") ? 1e6f : 5e5f);
  Count("vocab_size", TinyVocabulary());
  if (options_.expert_count > 0) Count("expert_count", options_.expert_count);
  if (options_.rope_linear_factor > 0) Real("rope.scaling.factor", options_.rope_linear_factor);
  if (!options_.rope_scaling_type.empty()) {
    gguf_set_val_str(gguf_.get(), Key("rope.scaling.type").c_str(),
                     options_.rope_scaling_type.c_str());
  }
  if (Is("gemma3")) {
    Count("attention.sliding_window", options_.window);
    if (options_.logit_softcap > 0) Real("final_logit_softcapping", options_.logit_softcap);
  }
}

void Writer::Tokenizer() {
  WriteTokenizer(gguf_.get(), MakePlainVocabulary());
  if (!options_.chat_template.empty()) {
    gguf_set_val_str(gguf_.get(), "tokenizer.chat_template", options_.chat_template.c_str());
  }
}

void Writer::Tensors() {
  const int vocabulary = TinyVocabulary();
  // Wide enough that the logits of a tied output spread over a few units.
  Matrix("token_embd.weight", options_.hidden, vocabulary, 0.3);
  for (int layer = 0; layer < options_.n_layers; ++layer) Layer(layer);
  Norm("output_norm.weight", options_.hidden);
  if (!options_.tied_output) {
    Matrix("output.weight", options_.hidden, vocabulary,
           2.0 / std::sqrt(static_cast<double>(options_.hidden)));
  }
  if (options_.rope_llama3_factors && !Omitted("rope_freqs.weight")) {
    const int64_t size = options_.head_dim / 2;
    ggml_tensor* factors = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, size);
    for (int64_t i = 0; i < size; ++i) {  // from 1 for fast pairs to 8 for slow ones
      const float t = static_cast<float>(i) / static_cast<float>(std::max<int64_t>(1, size - 1));
      static_cast<float*>(factors->data)[i] = 1.0f + 7.0f * t;
    }
    Finish(factors, "rope_freqs.weight");
  }
  if (!options_.extra_tensor.empty()) Vector(options_.extra_tensor, 4, 0, 1);
}

void Writer::Layer(int layer) {
  const std::string blk = "blk." + std::to_string(layer) + ".";
  const int64_t hidden = options_.hidden;
  const int64_t q_rows = int64_t{options_.query_heads} * options_.head_dim;
  const int64_t kv_rows = int64_t{options_.kv_heads} * options_.head_dim;
  const bool biases = options_.output_biases;
  Norm(blk + "attn_norm.weight", hidden);
  if (options_.fused_qkv) {
    Projection(blk + "attn_qkv", hidden, q_rows + 2 * kv_rows, Is("qwen2"));
  } else {
    Projection(blk + "attn_q", hidden, q_rows, Is("qwen2"));
    Projection(blk + "attn_k", hidden, kv_rows, Is("qwen2"));
    Projection(blk + "attn_v", hidden, kv_rows, Is("qwen2"));
  }
  if (Is("qwen3") || Is("gemma3")) {
    Norm(blk + "attn_q_norm.weight", options_.head_dim);
    Norm(blk + "attn_k_norm.weight", options_.head_dim);
  }
  Projection(blk + "attn_output", q_rows, hidden, biases);
  Norm(blk + "ffn_norm.weight", hidden);
  Projection(blk + "ffn_gate", hidden, options_.feed_forward, biases);
  Projection(blk + "ffn_up", hidden, options_.feed_forward, biases);
  Projection(blk + "ffn_down", options_.feed_forward, hidden, biases);
  if (Is("gemma3")) {
    Norm(blk + "post_attention_norm.weight", hidden);
    Norm(blk + "post_ffw_norm.weight", hidden);
  }
}

}  // namespace

int TinyVocabulary() { return static_cast<int>(MakePlainVocabulary().tokens.size()); }

void WriteTinyGguf(const std::string& path, const TinyGguf& options) {
  Writer(options).Write(path);
}

}  // namespace winnow::testing
