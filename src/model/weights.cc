#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/byte_size.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor_view.h"

namespace winnow {
namespace {

// The CPU's buffer types in the order of preference that libllama has: those that repack for faster
// products, then plain memory.
std::vector<ggml_backend_buffer_type_t> CpuBufferTypes() {
  std::vector<ggml_backend_buffer_type_t> types;
  ggml_backend_reg_t reg = ggml_backend_cpu_reg();
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(reg, 0);
  if (auto* get_extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
          ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts"))) {
    for (ggml_backend_buffer_type_t* type = get_extra(device); type != nullptr && *type != nullptr;
         ++type) {
      types.push_back(*type);
    }
  }
  types.push_back(ggml_backend_cpu_buffer_type());
  return types;
}

ContextPtr NewContext(size_t n_tensors) {
  ContextPtr context(ggml_init(
      {.mem_size = n_tensors * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  if (context == nullptr) Throw(ErrorKind::kResource, "not enough memory for the model's tensors");
  return context;
}

// The first buffer type in which a product with a matrix of this type and shape is supported.
ggml_backend_buffer_type_t ChooseBuffer(std::span<const ggml_backend_buffer_type_t> types,
                                        ggml_type type, int64_t columns, int64_t rows) {
  constexpr int64_t kBatch = 512;
  ContextPtr context = NewContext(3);
  ggml_tensor* w = ggml_new_tensor_2d(context.get(), type, columns, rows);
  ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns, kBatch);
  ggml_tensor* product = ggml_mul_mat(context.get(), w, x);
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
  for (ggml_backend_buffer_type_t buffer_type : types) {
    w->buffer = ggml_backend_buft_alloc_buffer(buffer_type, 0);
    const bool supported = ggml_backend_dev_supports_op(device, product);
    ggml_backend_buffer_free(w->buffer);
    w->buffer = nullptr;
    if (supported) return buffer_type;
  }
  return ggml_backend_cpu_buffer_type();
}

bool HasProduct(ggml_type type) { return ggml_get_type_traits_cpu(type)->vec_dot != nullptr; }

bool IsFloat(ggml_type type) {
  return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

// The number of layers that the tensors' names "blk.N.…" make up.
int64_t LayersOfTensors(const GgufFile& file) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layers = 0;
  for (const ggml_tensor* tensor : file.tensors()) {
    const std::string_view name = ggml_get_name(tensor);
    int layer = 0;
    if (!name.starts_with(kPrefix)) continue;
    const char* const begin = name.data() + kPrefix.size();
    const auto [rest, error] = std::from_chars(begin, name.data() + name.size(), layer);
    if (error == std::errc()) layers = std::max(layers, int64_t{layer} + 1);
  }
  return layers;
}

// One tensor to be made of tensors of the file, laid one after the other.
struct PlannedTensor {
  ggml_tensor* target = nullptr;
  std::vector<const ggml_tensor*> sources;
  bool repacked = false;
};

class Loader {
 public:
  Loader(const GgufFile& file, const ModelConfig& config)
      : file_(file),
        config_(config),
        architecture_(FindArchitecture(file)),
        types_(CpuBufferTypes()) {}

  // Checks every tensor of the file on the way; reads none.
  void Plan() {
    CheckLayers();
    PlanAll();
    RefuseUnused();
  }

  ModelWeights Load() {
    Plan();
    Allocate();
    // Big ones first: a repacked tensor is read into memory of its own before it is converted, and
    // that is least harmful while little else is resident.
    std::stable_sort(plans_.begin(), plans_.end(),
                     [](const PlannedTensor& a, const PlannedTensor& b) {
                       return ggml_nbytes(a.target) > ggml_nbytes(b.target);
                     });
    for (const PlannedTensor& plan : plans_) Fill(plan);
    return std::move(weights_);
  }

 private:
  void CheckLayers() const;
  void PlanAll();
  void PlanLayer(int layer);

  const ggml_tensor* Find(const std::string& name, std::vector<int64_t> shape, bool required);
  ggml_tensor* Vector(const std::string& name, int64_t size, bool required = true);
  ggml_tensor* HeadNorms(const std::string& q_name, const std::string& k_name);
  Linear Matrix(const std::string& stem, int64_t columns, int64_t rows, bool may_have_bias);
  StackedLinear Stack(const std::vector<std::string>& stems, int64_t columns,
                      const std::vector<int64_t>& rows, bool may_have_bias);
  ggml_tensor* StackedBias(std::span<const std::string> stems, std::span<const int64_t> rows,
                           bool may_have_bias);
  const ggml_tensor* FindMatrix(const std::string& name, int64_t columns, int64_t rows,
                                bool required = true);
  void RequireFloat(const ggml_tensor* tensor) const;
  ggml_tensor* Add(ggml_backend_buffer_type_t buffer_type, ggml_type type,
                   std::vector<int64_t> shape, std::vector<const ggml_tensor*> sources);
  ggml_backend_buffer_type_t Choose(ggml_type type, int64_t columns, int64_t rows) const {
    return ChooseBuffer(types_, type, columns, rows);
  }

  void RefuseUnused() const;
  void Allocate();
  void Fill(const PlannedTensor& plan) const;

  const GgufFile& file_;
  const ModelConfig& config_;
  const Architecture& architecture_;
  std::vector<ggml_backend_buffer_type_t> types_;
  std::map<ggml_backend_buffer_type_t, ContextPtr> contexts_;
  std::vector<PlannedTensor> plans_;
  std::set<std::string> used_;
  ModelWeights weights_;
};

// Before the tensors one by one: a wrong count would show as a tensor too many, or as one missing.
void Loader::CheckLayers() const {
  const int64_t layers = LayersOfTensors(file_);
  if (layers == config_.n_layers) return;
  Throw(ErrorKind::kInput, "{}: the metadata says {} layers, the tensors make up {}", file_.path(),
        config_.n_layers, layers);
}

const ggml_tensor* Loader::Find(const std::string& name, std::vector<int64_t> shape,
                                bool required) {
  const ggml_tensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) {
    if (required) Throw(ErrorKind::kInput, "{}: the tensor '{}' is missing", file_.path(), name);
    return nullptr;
  }
  const std::vector<int64_t> has(tensor->ne, tensor->ne + ggml_n_dims(tensor));
  std::vector<int64_t> wanted = shape;
  while (wanted.size() > 1 && wanted.back() == 1) wanted.pop_back();
  if (has != wanted) {
    Throw(ErrorKind::kInput, "{}: the tensor '{}' has shape [{}], expected [{}]", file_.path(),
          name, fmt::join(has, ", "), fmt::join(shape, ", "));
  }
  used_.insert(name);
  return tensor;
}

const ggml_tensor* Loader::FindMatrix(const std::string& name, int64_t columns, int64_t rows,
                                      bool required) {
  const ggml_tensor* tensor = Find(name, {columns, rows}, required);
  if (tensor != nullptr && !HasProduct(tensor->type)) {
    Throw(ErrorKind::kInput, "{}: the tensor '{}' is of type {}, which the CPU cannot multiply",
          file_.path(), name, ggml_type_name(tensor->type));
  }
  return tensor;
}

ggml_tensor* Loader::Add(ggml_backend_buffer_type_t buffer_type, ggml_type type,
                         std::vector<int64_t> shape, std::vector<const ggml_tensor*> sources) {
  ContextPtr& context = contexts_[buffer_type];
  if (context == nullptr) {
    // Each tensor is made of at least one of the file's; only a tied output is made twice.
    context = NewContext(file_.tensors().size() + 2);
  }
  ggml_tensor* target =
      ggml_new_tensor(context.get(), type, static_cast<int>(shape.size()), shape.data());
  plans_.push_back({target, std::move(sources), buffer_type != ggml_backend_cpu_buffer_type()});
  return target;
}

void Loader::RequireFloat(const ggml_tensor* tensor) const {
  if (IsFloat(tensor->type)) return;
  Throw(ErrorKind::kInput, "{}: the tensor '{}' is of type {}; f32, f16 or bf16 are expected",
        file_.path(), tensor->name, ggml_type_name(tensor->type));
}

ggml_tensor* Loader::Vector(const std::string& name, int64_t size, bool required) {
  const ggml_tensor* source = Find(name, {size}, required);
  if (source == nullptr) return nullptr;
  RequireFloat(source);
  return Add(ggml_backend_cpu_buffer_type(), GGML_TYPE_F32, {size}, {source});
}

ggml_tensor* Loader::StackedBias(std::span<const std::string> stems, std::span<const int64_t> rows,
                                 bool may_have_bias) {
  if (!may_have_bias) return nullptr;
  std::vector<const ggml_tensor*> sources;
  int64_t size = 0;
  for (size_t i = 0; i < stems.size(); ++i) {
    size += rows[i];
    const ggml_tensor* bias = Find(stems[i] + ".bias", {rows[i]}, false);
    if (bias == nullptr) continue;
    RequireFloat(bias);
    sources.push_back(bias);
  }
  if (sources.empty()) return nullptr;
  if (sources.size() != stems.size()) {
    Throw(ErrorKind::kInput, "{}: of {} only some have a bias", file_.path(),
          fmt::join(stems, ", "));
  }
  return Add(ggml_backend_cpu_buffer_type(), GGML_TYPE_F32, {size}, std::move(sources));
}

ggml_tensor* Loader::HeadNorms(const std::string& q_name, const std::string& k_name) {
  const ggml_tensor* q = Find(q_name, {config_.head_dim}, true);
  const ggml_tensor* k = Find(k_name, {config_.head_dim}, true);
  RequireFloat(q);
  RequireFloat(k);
  std::vector<const ggml_tensor*> sources(config_.query_heads, q);
  sources.insert(sources.end(), config_.kv_heads, k);
  return Add(ggml_backend_cpu_buffer_type(), GGML_TYPE_F32,
             {config_.head_dim, int64_t{config_.query_heads} + config_.kv_heads},
             std::move(sources));
}

Linear Loader::Matrix(const std::string& stem, int64_t columns, int64_t rows, bool may_have_bias) {
  const ggml_tensor* source = FindMatrix(stem + ".weight", columns, rows);
  Linear linear;
  linear.weight = Add(Choose(source->type, columns, rows), source->type, {columns, rows}, {source});
  linear.bias = StackedBias({&stem, 1}, {&rows, 1}, may_have_bias);
  return linear;
}

StackedLinear Loader::Stack(const std::vector<std::string>& stems, int64_t columns,
                            const std::vector<int64_t>& rows, bool may_have_bias) {
  std::vector<const ggml_tensor*> sources;
  for (size_t i = 0; i < stems.size(); ++i) {
    sources.push_back(FindMatrix(stems[i] + ".weight", columns, rows[i]));
  }
  StackedLinear stack;
  for (size_t begin = 0; begin < stems.size();) {
    const ggml_type type = sources[begin]->type;
    ggml_backend_buffer_type_t buffer_type = Choose(type, columns, rows[begin]);
    // A repacked buffer interleaves rows in groups. If it takes a part by itself, the part's rows
    // fill whole groups, so stacking mixes no two parts in one group.
    size_t end = begin + 1;
    int64_t total = rows[begin];
    while (end < stems.size() && sources[end]->type == type &&
           Choose(type, columns, rows[end]) == buffer_type &&
           Choose(type, columns, total + rows[end]) == buffer_type) {
      total += rows[end++];
    }
    Linear linear;
    linear.weight = Add(buffer_type, type, {columns, total},
                        {sources.begin() + static_cast<int64_t>(begin),
                         sources.begin() + static_cast<int64_t>(end)});
    linear.bias = StackedBias(std::span(stems).subspan(begin, end - begin),
                              std::span(rows).subspan(begin, end - begin), may_have_bias);
    int64_t row = 0;
    for (size_t i = begin; i < end; ++i) {
      stack.parts.push_back({static_cast<int>(stack.matrices.size()), row, rows[i]});
      row += rows[i];
    }
    stack.matrices.push_back(linear);
    begin = end;
  }
  return stack;
}

void Loader::PlanLayer(int layer) {
  const auto name = [&](std::string_view rest) { return fmt::format("blk.{}.{}", layer, rest); };
  const int64_t hidden = config_.hidden;
  const int64_t q_rows = int64_t{config_.query_heads} * config_.head_dim;
  const int64_t kv_rows = int64_t{config_.kv_heads} * config_.head_dim;
  const int64_t mlp = config_.feed_forward;
  const bool biases = architecture_.biases;

  LayerWeights& w = weights_.layers.emplace_back();
  w.attention_norm = Vector(name("attn_norm.weight"), hidden);
  const std::vector<int64_t> rows = {q_rows, kv_rows, kv_rows};
  if (file_.FindTensor(name("attn_qkv.weight")) != nullptr) {
    w.qkv = Stack({name("attn_qkv")}, hidden, {q_rows + 2 * kv_rows}, true);
    w.qkv.parts.clear();
    int64_t row = 0;
    for (int64_t n : rows) {
      w.qkv.parts.push_back({0, row, n});
      row += n;
    }
  } else {
    w.qkv = Stack({name("attn_q"), name("attn_k"), name("attn_v")}, hidden, rows, true);
  }
  if (architecture_.qk_norm) {
    w.qk_norm = HeadNorms(name("attn_q_norm.weight"), name("attn_k_norm.weight"));
  }
  w.attention_output = Matrix(name("attn_output"), q_rows, hidden, biases);
  w.mlp_norm = Vector(name("ffn_norm.weight"), hidden);
  w.gate_up = Stack({name("ffn_gate"), name("ffn_up")}, hidden, {mlp, mlp}, biases);
  w.down = Matrix(name("ffn_down"), mlp, hidden, biases);
  if (architecture_.post_norms) {
    w.attention_post_norm = Vector(name("post_attention_norm.weight"), hidden);
    w.mlp_post_norm = Vector(name("post_ffw_norm.weight"), hidden);
  }
}

void Loader::PlanAll() {
  const int64_t hidden = config_.hidden;
  const int64_t vocabulary = config_.vocabulary;
  const ggml_tensor* embedding = FindMatrix("token_embd.weight", hidden, vocabulary);
  weights_.embedding =
      Add(ggml_backend_cpu_buffer_type(), embedding->type, {hidden, vocabulary}, {embedding});
  for (int layer = 0; layer < config_.n_layers; ++layer) PlanLayer(layer);
  if (architecture_.rope_factors) {
    weights_.rope_factors = Vector("rope_freqs.weight", config_.head_dim / 2, false);
  }
  weights_.output_norm = Vector("output_norm.weight", hidden);
  if (file_.FindTensor("output.weight") != nullptr) {
    weights_.output = Matrix("output", hidden, vocabulary, true);
  } else {
    // As libllama does: shared where products read plain memory, a repacked copy of its own
    // elsewhere.
    ggml_backend_buffer_type_t buffer_type = Choose(embedding->type, hidden, vocabulary);
    weights_.output.weight =
        buffer_type == ggml_backend_cpu_buffer_type()
            ? weights_.embedding
            : Add(buffer_type, embedding->type, {hidden, vocabulary}, {embedding});
  }
}

void Loader::RefuseUnused() const {
  for (const ggml_tensor* tensor : file_.tensors()) {
    if (!used_.contains(tensor->name)) {
      Throw(ErrorKind::kInput,
            "{}: the tensor '{}' has no place in a {} model; the file needs something that is not "
            "supported",
            file_.path(), tensor->name, architecture_.name);
    }
  }
}

void Loader::Allocate() {
  int64_t needed = 0;
  for (const PlannedTensor& plan : plans_) {
    needed += static_cast<int64_t>(ggml_nbytes(plan.target));
  }
  if (const auto available = static_cast<int64_t>(AvailableMemoryBytes()); needed > available) {
    const auto [needs, has] = FormatBytesApart(needed, available);
    Throw(ErrorKind::kResource, "{} needs {} for its weights, and {} of memory are available",
          file_.path(), needs, has);
  }
  for (auto& [buffer_type, context] : contexts_) {
    ggml_backend_buffer_t buffer =
        ggml_backend_alloc_ctx_tensors_from_buft(context.get(), buffer_type);
    if (buffer == nullptr) {
      Throw(ErrorKind::kResource, "not enough memory for the weights of {}, {}", file_.path(),
            FormatBytes(needed));
    }
    // All of them are read for each token: decoding is 1.1 times as fast (135M parameters, Q4_1).
    PreferHugePages(ggml_backend_buffer_get_base(buffer), ggml_backend_buffer_get_size(buffer));
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    weights_.buffers.emplace_back(buffer);
    weights_.bytes += static_cast<int64_t>(ggml_backend_buffer_get_size(buffer));
    weights_.contexts.push_back(std::move(context));
  }
}

void Loader::Fill(const PlannedTensor& plan) const {
  AlignedBuffer<char> staging;
  char* out = static_cast<char*>(plan.target->data);
  if (plan.repacked) {
    staging.Resize(ggml_nbytes(plan.target));
    out = staging.data();
  }
  for (const ggml_tensor* source : plan.sources) {
    if (source->type == plan.target->type) {
      file_.Read(source, out);
      out += ggml_nbytes(source);
      continue;
    }
    WINNOW_CHECK(plan.target->type == GGML_TYPE_F32 && IsFloat(source->type), "{}", source->name);
    AlignedBuffer<char> raw(ggml_nbytes(source));
    file_.Read(source, raw.data());
    ggml_get_type_traits(source->type)
        ->to_float(raw.data(), reinterpret_cast<float*>(out), ggml_nelements(source));
    out += ggml_nelements(source) * sizeof(float);
  }
  if (plan.repacked) {
    ggml_backend_tensor_set(plan.target, staging.data(), 0, ggml_nbytes(plan.target));
  }
}

}  // namespace

void ContextDeleter::operator()(ggml_context* p) const { ggml_free(p); }
void ModelWeights::BufferDeleter::operator()(ggml_backend_buffer_t p) const {
  ggml_backend_buffer_free(p);
}

void CheckTensors(const GgufFile& file, const ModelConfig& config) { Loader(file, config).Plan(); }

ModelWeights LoadWeights(const GgufFile& file, const ModelConfig& config) {
  return Loader(file, config).Load();
}

}  // namespace winnow
