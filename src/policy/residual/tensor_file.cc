#include "policy/residual/tensor_file.h"

#include <ggml.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string_view>

#include "core/check.h"
#include "core/error.h"
#include "model/gguf_file.h"
#include "policy/residual/safetensors_file.h"

namespace winnow {
namespace {

class GgufTensorFile : public TensorFile {
 public:
  explicit GgufTensorFile(const std::string& path) : file_(path) {}

  const std::string& path() const override { return file_.path(); }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const ggml_tensor* tensor : file_.tensors()) names.emplace_back(tensor->name);
    return names;
  }
  std::optional<FileShape> Shape(const std::string& name) const override {
    const ggml_tensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return std::nullopt;
    return FileShape{tensor->ne[3], tensor->ne[2], tensor->ne[1], tensor->ne[0]};
  }
  std::optional<std::string> Metadata(const std::string& key) const override {
    return file_.String(key);
  }
  void Read(const std::string& name, std::span<float> out) const override {
    const ggml_tensor* tensor = file_.FindTensor(name);
    WINNOW_CHECK(tensor != nullptr && ggml_nelements(tensor) == std::ssize(out), "{}", name);
    if (tensor->type == GGML_TYPE_F32) {
      file_.Read(tensor, out.data());
      return;
    }
    const ggml_to_float_t to_float = ggml_get_type_traits(tensor->type)->to_float;
    if (to_float == nullptr) {
      Throw(ErrorKind::kInput, "{}: tensor '{}' is of type {}, which holds no real numbers", path(),
            name, ggml_type_name(tensor->type));
    }
    std::vector<std::byte> bytes(ggml_nbytes(tensor));
    file_.Read(tensor, bytes.data());
    to_float(bytes.data(), out.data(), std::ssize(out));
  }

 private:
  GgufFile file_;
};

}  // namespace

int64_t Elements(const FileShape& shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

std::unique_ptr<TensorFile> OpenTensorFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Throw(ErrorKind::kInput, "cannot open {}: {}", path, std::strerror(errno));
  std::array<char, 4> magic{};
  file.read(magic.data(), std::ssize(magic));
  if (std::string_view(magic.data(), magic.size()) == "GGUF") {
    return std::make_unique<GgufTensorFile>(path);
  }
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace winnow
