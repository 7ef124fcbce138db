#include "model/gguf_file.h"

#include <fcntl.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/check.h"
#include "core/error.h"
#include "core/library_log.h"

namespace winnow {
namespace {

constexpr std::array<char, 4> kMagic = {'G', 'G', 'U', 'F'};

// The integer of any width at `data`, entry `i`.
std::optional<int64_t> IntegerAt(gguf_type type, const void* data, size_t i) {
  switch (type) {
    case GGUF_TYPE_UINT8:
      return static_cast<const uint8_t*>(data)[i];
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
      return static_cast<const int8_t*>(data)[i];
    case GGUF_TYPE_UINT16:
      return static_cast<const uint16_t*>(data)[i];
    case GGUF_TYPE_INT16:
      return static_cast<const int16_t*>(data)[i];
    case GGUF_TYPE_UINT32:
      return static_cast<const uint32_t*>(data)[i];
    case GGUF_TYPE_INT32:
      return static_cast<const int32_t*>(data)[i];
    case GGUF_TYPE_UINT64:
      return static_cast<int64_t>(static_cast<const uint64_t*>(data)[i]);
    case GGUF_TYPE_INT64:
      return static_cast<const int64_t*>(data)[i];
    default:
      return std::nullopt;
  }
}

[[noreturn]] void ThrowWrongType(const std::string& path, const std::string& key, gguf_type is,
                                 std::string_view wanted) {
  Throw(ErrorKind::kInput, "{}: the metadata key '{}' is of type {}, not {}", path, key,
        gguf_type_name(is), wanted);
}

}  // namespace

void GgufFile::Free::operator()(gguf_context* p) const { gguf_free(p); }
void GgufFile::Free::operator()(ggml_context* p) const { ggml_free(p); }

GgufFile::GgufFile(const std::string& path) : path_(path) {
  struct Closer {  // the destructor does not run if the constructor throws
    int* descriptor;
    ~Closer() {
      if (descriptor != nullptr && *descriptor >= 0) close(*descriptor);
    }
  } closer{&descriptor_};

  // Not blocking: a pipe would wait for a writer.
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    Throw(ErrorKind::kInput, "cannot open the model {}: {}", path, std::strerror(errno));
  }
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    Throw(ErrorKind::kInput, "{} is not a regular file; a GGUF model is expected", path);
  }
  file_bytes_ = status.st_size;
  std::array<char, 4> magic{};
  if (pread(descriptor_, magic.data(), kMagic.size(), 0) != ssize_t{kMagic.size()} ||
      magic != kMagic) {
    Throw(ErrorKind::kInput, "{} is not a GGUF file (it does not begin with \"GGUF\")", path);
  }

  const LogCapture capture;
  ggml_context* tensors = nullptr;
  gguf_.reset(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = &tensors}));
  tensors_context_.reset(tensors);
  if (gguf_ == nullptr || tensors == nullptr) {
    const std::string log = capture.Line();
    Throw(ErrorKind::kInput, "{} is truncated or damaged: its header cannot be read{}{}", path,
          log.empty() ? "" : ": ", log);
  }
  for (ggml_tensor* t = ggml_get_first_tensor(tensors); t != nullptr;
       t = ggml_get_next_tensor(tensors, t)) {
    tensors_.push_back(t);
  }
  CheckTensors();
  closer.descriptor = nullptr;
}

GgufFile::~GgufFile() { close(descriptor_); }

void GgufFile::CheckTensors() const {
  if (const auto parts = Integer("split.count"); parts.value_or(1) > 1) {
    Throw(ErrorKind::kInput,
          "{} is one of {} parts of a split model: merge them first (llama-gguf-split --merge)",
          path_, *parts);
  }
  const auto size = static_cast<uint64_t>(file_bytes_);
  const uint64_t start = gguf_get_data_offset(gguf_.get());
  for (int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i) {
    const uint64_t offset = gguf_get_tensor_offset(gguf_.get(), i);
    const uint64_t bytes = gguf_get_tensor_size(gguf_.get(), i);
    if (start > size || offset > size - start || bytes > size - start - offset) {
      Throw(ErrorKind::kInput, "{} is truncated: it has {} bytes, and tensor '{}' ends at {}",
            path_, size, gguf_get_tensor_name(gguf_.get(), i), start + offset + bytes);
    }
  }
}

int64_t GgufFile::Key(const std::string& key) const {
  return gguf_find_key(gguf_.get(), key.c_str());
}

std::optional<std::string> GgufFile::String(const std::string& key) const {
  const int64_t id = Key(key);
  if (id < 0) return std::nullopt;
  const gguf_type type = gguf_get_kv_type(gguf_.get(), id);
  if (type != GGUF_TYPE_STRING) ThrowWrongType(path_, key, type, "a string");
  return gguf_get_val_str(gguf_.get(), id);
}

std::optional<int64_t> GgufFile::Integer(const std::string& key) const {
  const int64_t id = Key(key);
  if (id < 0) return std::nullopt;
  const gguf_type type = gguf_get_kv_type(gguf_.get(), id);
  if (type == GGUF_TYPE_STRING || type == GGUF_TYPE_ARRAY || type == GGUF_TYPE_BOOL) {
    ThrowWrongType(path_, key, type, "an integer");
  }
  const auto value = IntegerAt(type, gguf_get_val_data(gguf_.get(), id), 0);
  if (!value) ThrowWrongType(path_, key, type, "an integer");
  return value;
}

std::optional<double> GgufFile::Real(const std::string& key) const {
  const int64_t id = Key(key);
  if (id < 0) return std::nullopt;
  const gguf_type type = gguf_get_kv_type(gguf_.get(), id);
  if (type == GGUF_TYPE_FLOAT32) return gguf_get_val_f32(gguf_.get(), id);
  if (type == GGUF_TYPE_FLOAT64) return gguf_get_val_f64(gguf_.get(), id);
  ThrowWrongType(path_, key, type, "a real number");
}

std::optional<bool> GgufFile::Bool(const std::string& key) const {
  const int64_t id = Key(key);
  if (id < 0) return std::nullopt;
  const gguf_type type = gguf_get_kv_type(gguf_.get(), id);
  if (type != GGUF_TYPE_BOOL) ThrowWrongType(path_, key, type, "a boolean");
  return gguf_get_val_bool(gguf_.get(), id);
}

std::optional<int64_t> GgufFile::ArrayLength(const std::string& key) const {
  const int64_t id = Key(key);
  if (id < 0) return std::nullopt;
  const gguf_type type = gguf_get_kv_type(gguf_.get(), id);
  if (type != GGUF_TYPE_ARRAY) ThrowWrongType(path_, key, type, "an array");
  return static_cast<int64_t>(gguf_get_arr_n(gguf_.get(), id));
}

std::optional<std::vector<int64_t>> GgufFile::Integers(const std::string& key) const {
  const int64_t id = Key(key);
  if (id < 0 || gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY) return std::nullopt;
  const gguf_type type = gguf_get_arr_type(gguf_.get(), id);
  std::vector<int64_t> values(gguf_get_arr_n(gguf_.get(), id));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = type == GGUF_TYPE_STRING
                           ? std::nullopt
                           : IntegerAt(type, gguf_get_arr_data(gguf_.get(), id), i);
    if (!value) ThrowWrongType(path_, key, type, "an array of integers");
    values[i] = *value;
  }
  return values;
}

const ggml_tensor* GgufFile::FindTensor(const std::string& name) const {
  return ggml_get_tensor(tensors_context_.get(), name.c_str());
}

void GgufFile::Read(const ggml_tensor* tensor, void* destination) const {
  const int64_t id = gguf_find_tensor(gguf_.get(), tensor->name);
  WINNOW_CHECK(id >= 0, "no tensor {}", tensor->name);
  size_t left = gguf_get_tensor_size(gguf_.get(), id);
  auto offset = static_cast<off_t>(gguf_get_data_offset(gguf_.get()) +
                                   gguf_get_tensor_offset(gguf_.get(), id));
  auto* out = static_cast<char*>(destination);
  while (left > 0) {
    const ssize_t n = pread(descriptor_, out, left, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      Throw(ErrorKind::kInput, "{}: tensor '{}' cannot be read: {}", path_, tensor->name,
            n == 0 ? "the file ends early" : std::strerror(errno));
    }
    out += n;
    offset += n;
    left -= static_cast<size_t>(n);
  }
}

}  // namespace winnow
