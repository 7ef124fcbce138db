#include "model/synthetic.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "core/rng.h"
#include "model/plain_vocabulary.h"

namespace winnow {
namespace {

constexpr std::string_view kPrefix = "synthetic:";
constexpr int64_t kMaxLayers = 1024;

struct Shape {
  const char* name;
  const char* architecture;
  int n_layers, hidden, query_heads, kv_heads, head_dim, feed_forward, vocabulary, context;
  float rope_base;
  bool tied_output;
};

constexpr std::array<Shape, 6> kShapes = {{
    {"smollm2-135m", "llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5f, true},
    {"llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5f, true},
    {"llama-3.2-3b", "llama", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5f, true},
    {"llama-3.1-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5f, false},
    {"qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6f, true},
    {"qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6f, false},
}};

struct Spec {
  Shape shape;
  ggml_type type = GGML_TYPE_Q4_0;
};

const Shape& FindShape(std::string_view name) {
  const auto* shape = std::find_if(kShapes.begin(), kShapes.end(),
                                   [&](const Shape& known) { return known.name == name; });
  if (shape == kShapes.end()) {
    Throw(ErrorKind::kUsage, "no synthetic model '{}'; known: {}", name,
          fmt::join(SyntheticShapes(), ", "));
  }
  return *shape;
}

Spec ParseName(const std::string& name) {
  std::string_view text = name;
  text.remove_prefix(kPrefix.size());
  const std::string_view shape_name = text.substr(0, text.find(','));
  Spec spec{FindShape(shape_name)};
  for (size_t at = shape_name.size(); at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view part = text.substr(at + 1, end - at - 1);
    at = end;
    if (part == "type=q4_0" || part == "type=q8_0") {
      spec.type = part == "type=q4_0" ? GGML_TYPE_Q4_0 : GGML_TYPE_Q8_0;
      continue;
    }
    constexpr std::string_view kLayers = "layers=";
    int layers = 0;
    const char* last = part.data() + part.size();
    if (!part.starts_with(kLayers) ||
        std::from_chars(part.data() + kLayers.size(), last, layers).ptr != last || layers < 1 ||
        layers > kMaxLayers) {
      Throw(ErrorKind::kUsage, "'{}': '{}' is neither layers=1 to {} nor type=q4_0 or q8_0", name,
            part, kMaxLayers);
    }
    spec.shape.n_layers = layers;
  }
  return spec;
}

// The file's tensors without data, and the metadata.
class Header {
 public:
  Header(const std::string& name, const Spec& spec)
      : spec_(spec),
        gguf_(gguf_init_empty()),
        context_(ggml_init(
            {.mem_size = ggml_tensor_overhead() * (kTensorsPerLayer * spec.shape.n_layers + 4),
             .mem_buffer = nullptr,
             .no_alloc = true})) {
    if (gguf_ == nullptr || context_ == nullptr) Throw(ErrorKind::kResource, "out of memory");
    WriteMetadata(name);
    AddTensors();
    meta_.resize(gguf_get_meta_size(gguf_.get()));
    gguf_get_meta_data(gguf_.get(), meta_.data());
  }

  const std::vector<std::byte>& meta() const { return meta_; }
  const std::vector<const ggml_tensor*>& tensors() const { return tensors_; }
  int64_t Offset(const ggml_tensor* tensor) const {
    const int64_t id = gguf_find_tensor(gguf_.get(), tensor->name);
    return static_cast<int64_t>(meta_.size() + gguf_get_tensor_offset(gguf_.get(), id));
  }
  int64_t file_bytes() const {
    const ggml_tensor* last = tensors_.back();
    return Offset(last) + static_cast<int64_t>(GGML_PAD(ggml_nbytes(last), GGUF_DEFAULT_ALIGNMENT));
  }

 private:
  static constexpr size_t kTensorsPerLayer = 11;
  struct Free {
    void operator()(gguf_context* p) const { gguf_free(p); }
    void operator()(ggml_context* p) const { ggml_free(p); }
  };

  void WriteMetadata(const std::string& name) {
    const Shape& shape = spec_.shape;
    gguf_context* g = gguf_.get();
    gguf_set_val_str(g, "general.architecture", shape.architecture);
    gguf_set_val_str(g, "general.name", (name + " (random weights)").c_str());
    const auto count = [&](const char* key, int value) {
      gguf_set_val_u32(g, fmt::format("{}.{}", shape.architecture, key).c_str(),
                       static_cast<uint32_t>(value));
    };
    const auto real = [&](const char* key, float value) {
      gguf_set_val_f32(g, fmt::format("{}.{}", shape.architecture, key).c_str(), value);
    };
    count("block_count", shape.n_layers);
    count("context_length", shape.context);
    count("embedding_length", shape.hidden);
    count("feed_forward_length", shape.feed_forward);
    count("attention.head_count", shape.query_heads);
    count("attention.head_count_kv", shape.kv_heads);
    count("attention.key_length", shape.head_dim);
    count("attention.value_length", shape.head_dim);
    count("rope.dimension_count", shape.head_dim);
    real("attention.layer_norm_rms_epsilon", 1e-5f);
    real("rope.freq_base", shape.rope_base);
    count("vocab_size", shape.vocabulary);
    WriteTokenizer(g, MakePlainVocabulary(shape.vocabulary));
  }

  void AddTensors() {
    const Shape& shape = spec_.shape;
    Matrix("token_embd.weight", shape.hidden, shape.vocabulary);
    for (int layer = 0; layer < shape.n_layers; ++layer) AddLayer(fmt::format("blk.{}.", layer));
    Norm("output_norm.weight", shape.hidden);
    if (!shape.tied_output) Matrix("output.weight", shape.hidden, shape.vocabulary);
  }
  void AddLayer(const std::string& blk) {
    const Shape& shape = spec_.shape;
    const int q_rows = shape.query_heads * shape.head_dim;
    const int kv_rows = shape.kv_heads * shape.head_dim;
    Norm(blk + "attn_norm.weight", shape.hidden);
    Matrix(blk + "attn_q.weight", shape.hidden, q_rows);
    Matrix(blk + "attn_k.weight", shape.hidden, kv_rows);
    Matrix(blk + "attn_v.weight", shape.hidden, kv_rows);
    if (std::string_view(shape.architecture) == "qwen3") {
      Norm(blk + "attn_q_norm.weight", shape.head_dim);
      Norm(blk + "attn_k_norm.weight", shape.head_dim);
    }
    Matrix(blk + "attn_output.weight", q_rows, shape.hidden);
    Norm(blk + "ffn_norm.weight", shape.hidden);
    Matrix(blk + "ffn_gate.weight", shape.hidden, shape.feed_forward);
    Matrix(blk + "ffn_up.weight", shape.hidden, shape.feed_forward);
    Matrix(blk + "ffn_down.weight", shape.feed_forward, shape.hidden);
  }
  void Matrix(const std::string& name, int64_t columns, int64_t rows) {
    Add(name, ggml_new_tensor_2d(context_.get(), spec_.type, columns, rows));
  }
  void Norm(const std::string& name, int64_t size) {
    Add(name, ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, size));
  }
  void Add(const std::string& name, ggml_tensor* tensor) {
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(gguf_.get(), tensor);
    tensors_.push_back(tensor);
  }

  const Spec& spec_;
  std::unique_ptr<gguf_context, Free> gguf_;
  std::unique_ptr<ggml_context, Free> context_;
  std::vector<const ggml_tensor*> tensors_;
  std::vector<std::byte> meta_;
};

// Blocks of q4_0 and q8_0: an f16 scale and codes, all random but for the scale, which gives the
// values a deviation of 1/sqrt(columns).
void FillBlocks(Rng& rng, const ggml_tensor* tensor, std::span<std::byte> bytes) {
  // Of codes uniform on [-8, 8) and [-128, 128).
  const double codes = tensor->type == GGML_TYPE_Q4_0 ? 16 : 256;
  const double deviation = std::sqrt((codes * codes - 1) / 12);
  const ggml_fp16_t scale = ggml_fp32_to_fp16(
      static_cast<float>(1 / (deviation * std::sqrt(static_cast<double>(tensor->ne[0])))));
  size_t at = 0;
  for (; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t random = rng.Next();
    std::memcpy(bytes.data() + at, &random, sizeof(random));
  }
  const uint64_t random = rng.Next();
  std::memcpy(bytes.data() + at, &random, bytes.size() - at);
  const size_t block = ggml_type_size(tensor->type);
  for (at = 0; at < bytes.size(); at += block)
    std::memcpy(bytes.data() + at, &scale, sizeof(scale));
}

// A file without a name; deleted by the system with the process.
class AnonymousFile {
 public:
  AnonymousFile() : descriptor_(memfd_create("winnow-synthetic", MFD_CLOEXEC)) {
    if (descriptor_ < 0) {
      Throw(ErrorKind::kResource, "no file in memory can be made: {}", std::strerror(errno));
    }
  }
  ~AnonymousFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  AnonymousFile(const AnonymousFile&) = delete;
  AnonymousFile& operator=(const AnonymousFile&) = delete;

  void Write(int64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = pwrite(descriptor_, bytes.data(), bytes.size(), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        Throw(ErrorKind::kResource, "a synthetic model cannot be written: {}",
              std::strerror(errno));
      }
      offset += n;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  void Extend(int64_t bytes) const {
    if (ftruncate(descriptor_, bytes) != 0) {
      Throw(ErrorKind::kResource, "a synthetic model cannot be written: {}", std::strerror(errno));
    }
  }
  // Keeps it until the process ends.
  std::string Keep() { return fmt::format("/proc/self/fd/{}", std::exchange(descriptor_, -1)); }

 private:
  int descriptor_;
};

void WriteTensor(const AnonymousFile& file, int64_t offset, uint64_t seed,
                 const ggml_tensor* tensor) {
  const auto n_bytes = static_cast<int64_t>(ggml_nbytes(tensor));
  if (tensor->type == GGML_TYPE_F32) {
    const std::vector<float> ones(ggml_nelements(tensor), 1.0f);
    file.Write(offset, std::as_bytes(std::span(ones)));
    return;
  }
  Rng rng(seed);
  constexpr int64_t kBlocks = 1 << 16;  // a few MiB at a time
  const auto chunk = kBlocks * static_cast<int64_t>(ggml_type_size(tensor->type));
  std::vector<std::byte> bytes(std::min(chunk, n_bytes));
  for (int64_t done = 0; done < n_bytes; done += chunk) {
    bytes.resize(std::min(chunk, n_bytes - done));
    FillBlocks(rng, tensor, bytes);
    file.Write(offset + done, bytes);
  }
}

}  // namespace

bool IsSyntheticName(std::string_view name) { return name.starts_with(kPrefix); }

std::vector<std::string> SyntheticShapes() {
  std::vector<std::string> names;
  names.reserve(kShapes.size());
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

SyntheticHeads HeadsOfShape(std::string_view shape) {
  const Shape& found = FindShape(shape);
  return {found.query_heads, found.kv_heads, found.head_dim};
}

int64_t SyntheticModelBytes(const std::string& name) {
  const Spec spec = ParseName(name);
  return Header(name, spec).file_bytes();
}

std::string MakeSyntheticModel(const std::string& name) {
  const Spec spec = ParseName(name);
  const Header header(name, spec);
  const int64_t bytes = header.file_bytes();
  // The file, and the weights that are loaded from it.
  const auto available = static_cast<int64_t>(AvailableMemoryBytes());
  if (2 * bytes > available) {
    Throw(ErrorKind::kResource,
          "'{}' takes {} MiB twice, as a file in memory and loaded, and {} MiB are available: ask "
          "for fewer layers, such as synthetic:{},layers={}",
          name, bytes >> 20, available >> 20, spec.shape.name,
          std::max(1, spec.shape.n_layers / 4));
  }
  AnonymousFile file;
  file.Extend(bytes);
  file.Write(0, header.meta());
  uint64_t seed = 1;
  for (const ggml_tensor* tensor : header.tensors()) {
    WriteTensor(file, header.Offset(tensor), Rng(seed++).Next(), tensor);
  }
  return file.Keep();
}

}  // namespace winnow
