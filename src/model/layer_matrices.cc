#include "model/layer_matrices.h"

#include <fmt/format.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "core/error.h"

namespace winnow {
namespace {

const ggml_tensor* Require(const GgufFile& file, const std::string& name, int64_t columns,
                           int64_t rows) {
  const ggml_tensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) {
    Throw(ErrorKind::kInput, "{}: the tensor '{}' is missing", file.path(), name);
  }
  if (tensor->ne[0] != columns || ggml_nelements(tensor) != columns * rows) {
    Throw(ErrorKind::kInput, "{}: the tensor '{}' has {} columns and {} elements, not {} and {}",
          file.path(), name, tensor->ne[0], ggml_nelements(tensor), columns, columns * rows);
  }
  return tensor;
}

void Dequantise(const GgufFile& file, const ggml_tensor* tensor, const void* row, int64_t n,
                float* out) {
  if (tensor->type == GGML_TYPE_F32) {
    std::memcpy(out, row, n * sizeof(float));
    return;
  }
  const ggml_to_float_t to_float = ggml_get_type_traits(tensor->type)->to_float;
  if (to_float == nullptr) {
    Throw(ErrorKind::kInput, "{}: the tensor '{}' is of type {}, which has no values as floats",
          file.path(), tensor->name, ggml_type_name(tensor->type));
  }
  to_float(row, out, n);
}

std::vector<float> ReadAll(const GgufFile& file, const ggml_tensor* tensor) {
  std::vector<char> bytes(ggml_nbytes(tensor));
  file.Read(tensor, bytes.data());
  std::vector<float> values(ggml_nelements(tensor));
  Dequantise(file, tensor, bytes.data(), std::ssize(values), values.data());
  return values;
}

class Reader {
 public:
  Reader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  FloatMatrix Matrix(std::string_view name, int64_t columns, int64_t rows) const {
    return {ReadAll(file_, Require(file_, Name(name), columns, rows)), rows, columns};
  }
  std::vector<float> Vector(std::string_view name, int64_t size) const {
    return ReadAll(file_, Require(file_, Name(name), size, 1));
  }
  std::vector<float> Optional(std::string_view name, int64_t size) const {
    return Has(name) ? Vector(name, size) : std::vector<float>();
  }
  bool Has(std::string_view name) const { return file_.FindTensor(Name(name)) != nullptr; }

 private:
  std::string Name(std::string_view name) const { return fmt::format("{}{}", prefix_, name); }

  const GgufFile& file_;
  std::string prefix_;
};

FloatMatrix TakeRows(const FloatMatrix& all, int64_t begin, int64_t n) {
  const auto first = all.data.begin() + begin * all.columns;
  return {{first, first + n * all.columns}, n, all.columns};
}

std::vector<float> TakeValues(const std::vector<float>& all, int64_t begin, int64_t n) {
  if (all.empty()) return {};
  return {all.begin() + begin, all.begin() + begin + n};
}

}  // namespace

AttentionMatrices ReadAttentionMatrices(const GgufFile& file, const ModelConfig& config,
                                        int layer) {
  const Reader read(file, fmt::format("blk.{}.", layer));
  const int64_t hidden = config.hidden;
  const int64_t q_rows = int64_t{config.query_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.kv_heads} * config.head_dim;
  AttentionMatrices m;
  if (read.Has("attn_qkv.weight")) {
    const int64_t rows = q_rows + 2 * kv_rows;
    const FloatMatrix all = read.Matrix("attn_qkv.weight", hidden, rows);
    const std::vector<float> bias = read.Optional("attn_qkv.bias", rows);
    m.q = TakeRows(all, 0, q_rows);
    m.k = TakeRows(all, q_rows, kv_rows);
    m.v = TakeRows(all, q_rows + kv_rows, kv_rows);
    m.q_bias = TakeValues(bias, 0, q_rows);
    m.k_bias = TakeValues(bias, q_rows, kv_rows);
    m.v_bias = TakeValues(bias, q_rows + kv_rows, kv_rows);
  } else {
    m.q = read.Matrix("attn_q.weight", hidden, q_rows);
    m.k = read.Matrix("attn_k.weight", hidden, kv_rows);
    m.v = read.Matrix("attn_v.weight", hidden, kv_rows);
    m.q_bias = read.Optional("attn_q.bias", q_rows);
    m.k_bias = read.Optional("attn_k.bias", kv_rows);
    m.v_bias = read.Optional("attn_v.bias", kv_rows);
  }
  m.output = read.Matrix("attn_output.weight", q_rows, hidden);
  m.norm = read.Vector("attn_norm.weight", hidden);
  m.mlp_norm = read.Vector("ffn_norm.weight", hidden);
  m.q_norm = read.Optional("attn_q_norm.weight", config.head_dim);
  m.k_norm = read.Optional("attn_k_norm.weight", config.head_dim);
  m.post_norm = read.Optional("post_attention_norm.weight", hidden);
  return m;
}

ReadoutBounds ReadReadoutBounds(const GgufFile& file, const ModelConfig& config) {
  const char* const name =
      file.FindTensor("output.weight") != nullptr ? "output.weight" : "token_embd.weight";
  const ggml_tensor* tensor = Require(file, name, config.hidden, config.vocabulary);
  std::vector<char> bytes(ggml_nbytes(tensor));
  file.Read(tensor, bytes.data());
  const size_t row_bytes = ggml_row_size(tensor->type, config.hidden);
  std::vector<float> row(config.hidden);
  ReadoutBounds bounds;
  for (int64_t i = 0; i < config.vocabulary; ++i) {
    Dequantise(file, tensor, bytes.data() + i * row_bytes, config.hidden, row.data());
    double squares = 0;
    for (float x : row) squares += static_cast<double>(x) * static_cast<double>(x);
    bounds.largest_row = std::max(bounds.largest_row, std::sqrt(squares));
  }
  bounds.norm = ReadAll(file, Require(file, "output_norm.weight", config.hidden, 1));
  return bounds;
}

}  // namespace winnow
