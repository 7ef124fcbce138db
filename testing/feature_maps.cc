#include "testing/feature_maps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "core/hash.h"
#include "core/rng.h"

namespace winnow::testing {
namespace {

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;  // outermost first
  std::vector<std::byte> bytes;
};

struct File {
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<Tensor> tensors;
  ggml_type type = GGML_TYPE_F32;
};

class Maker {
 public:
  explicit Maker(const RandomFeatureMaps& options) : options_(options) {
    if (options.weight_type == "f16") file_.type = GGML_TYPE_F16;
    if (options.weight_type == "bf16") file_.type = GGML_TYPE_BF16;
  }

  File Make() {
    Text("winnow.phi.format", options_.format);
    Text("winnow.phi.model_hash", options_.model_hash);
    Text("winnow.phi.trained_tokens", options_.trained_tokens);
    for (int layer = 0; layer < options_.n_layers; ++layer) {
      const auto& omitted = options_.omit_layers;
      if (std::find(omitted.begin(), omitted.end(), layer) != omitted.end()) continue;
      Stack(fmt::format("blk.{}.phi_q.", layer), options_.query_heads);
      Stack(fmt::format("blk.{}.phi_k.", layer), options_.kv_heads);
    }
    if (!options_.extra.empty()) Add(options_.extra, {2}, 1);
    return std::move(file_);
  }

 private:
  void Text(const std::string& key, const std::string& value) {
    if (key != options_.omit) file_.metadata.emplace_back(key, value);
  }

  // Weights as small as trained ones start: the features stay near one.
  void Stack(const std::string& prefix, int64_t n) {
    const int64_t dim = options_.head_dim;
    const int64_t hidden = options_.hidden;
    const int64_t features = options_.n_features;
    const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
      Add(prefix + name, {n, rows, columns}, 1 / std::sqrt(static_cast<double>(columns)));
    };
    matrix("w_s", hidden, dim);
    Add(prefix + "b_s", {n, hidden}, 0.1);
    matrix("w_1", hidden, hidden);
    Add(prefix + "b_1", {n, hidden}, 0.1);
    matrix("w_2", hidden, hidden);
    Add(prefix + "b_2", {n, hidden}, 0.1);
    matrix("w_o", features, hidden);
    Add(prefix + "b_o", {n, features}, 0.1);
    Add(prefix + "alpha", {n}, 0.5);
    Add(prefix + "log_gain", {n}, 0.1);
  }

  void Add(const std::string& name, std::vector<int64_t> shape, double deviation) {
    if (name == options_.omit) return;
    if (name == options_.misshape) ++shape.back();
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    const auto* letters = reinterpret_cast<const std::byte*>(name.data());
    Rng rng(options_.seed ^ HashBytes({letters, name.size()}).low);
    std::vector<float> values(n);
    for (float& value : values) value = static_cast<float>(deviation * rng.Normal());
    if (name == options_.not_finite) values[0] = std::numeric_limits<float>::quiet_NaN();

    std::vector<std::byte> bytes(n * ggml_type_size(file_.type));
    if (file_.type == GGML_TYPE_F32) {
      std::copy_n(reinterpret_cast<const std::byte*>(values.data()), bytes.size(), bytes.data());
    } else if (file_.type == GGML_TYPE_F16) {
      ggml_fp32_to_fp16_row(values.data(), reinterpret_cast<ggml_fp16_t*>(bytes.data()), n);
    } else {
      ggml_fp32_to_bf16_row(values.data(), reinterpret_cast<ggml_bf16_t*>(bytes.data()), n);
    }
    file_.tensors.push_back({name, std::move(shape), std::move(bytes)});
  }

  const RandomFeatureMaps& options_;
  File file_;
};

void WriteSafetensors(const std::string& path, const File& file) {
  const char* dtype = file.type == GGML_TYPE_F32   ? "F32"
                      : file.type == GGML_TYPE_F16 ? "F16"
                                                   : "BF16";
  std::string header = "{\"__metadata__\":{";
  const char* comma = "";
  for (const auto& [key, value] : file.metadata) {
    header += fmt::format("{}\"{}\":\"{}\"", std::exchange(comma, ","), key, value);
  }
  header += "}";
  size_t offset = 0;
  for (const Tensor& tensor : file.tensors) {
    header +=
        fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                    dtype, fmt::join(tensor.shape, ","), offset, offset + tensor.bytes.size());
    offset += tensor.bytes.size();
  }
  header += "}";
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) out.put(static_cast<char>(header.size() >> (8 * i)));
  out << header;
  for (const Tensor& tensor : file.tensors) {
    out.write(reinterpret_cast<const char*>(tensor.bytes.data()), std::ssize(tensor.bytes));
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

struct Deleter {
  void operator()(gguf_context* p) const { gguf_free(p); }
  void operator()(ggml_context* p) const { ggml_free(p); }
};

void WriteGguf(const std::string& path, const File& file) {
  const std::unique_ptr<gguf_context, Deleter> gguf(gguf_init_empty());
  size_t memory = ggml_tensor_overhead();
  for (const Tensor& tensor : file.tensors) {
    memory += tensor.bytes.size() + ggml_tensor_overhead() + GGML_MEM_ALIGN;
  }
  const std::unique_ptr<ggml_context, Deleter> context(
      ggml_init({.mem_size = memory, .mem_buffer = nullptr, .no_alloc = false}));
  for (const auto& [key, value] : file.metadata) {
    gguf_set_val_str(gguf.get(), key.c_str(), value.c_str());
  }
  for (const Tensor& tensor : file.tensors) {
    const std::vector<int64_t> extents(tensor.shape.rbegin(), tensor.shape.rend());
    ggml_tensor* t =
        ggml_new_tensor(context.get(), file.type, static_cast<int>(extents.size()), extents.data());
    ggml_set_name(t, tensor.name.c_str());
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), static_cast<std::byte*>(t->data));
    gguf_add_tensor(gguf.get(), t);
  }
  if (!gguf_write_to_file(gguf.get(), path.c_str(), false)) {
    throw std::runtime_error("cannot write " + path);
  }
}

}  // namespace

void WriteFeatureMaps(const std::string& path, const RandomFeatureMaps& options) {
  const File file = Maker(options).Make();
  path.ends_with(".gguf") ? WriteGguf(path, file) : WriteSafetensors(path, file);
}

}  // namespace winnow::testing
