// Named float tensors and text metadata of a safetensors or GGUF file, checked when opened.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace winnow {

// Row-major, the outermost axis first, filled up with leading ones: GGUF does not say how many axes
// of extent 1 a tensor has.
using FileShape = std::array<int64_t, 4>;

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  virtual const std::string& path() const = 0;
  virtual std::vector<std::string> Names() const = 0;
  // Nothing where there is no tensor of that name.
  virtual std::optional<FileShape> Shape(const std::string& name) const = 0;
  // Nothing where the key is absent.
  virtual std::optional<std::string> Metadata(const std::string& key) const = 0;
  // The values of an existing tensor, `out` as large as its shape says. Throws Error(kInput) for an
  // element type that holds no real numbers and for what cannot be read.
  virtual void Read(const std::string& name, std::span<float> out) const = 0;
};

int64_t Elements(const FileShape& shape);

// By content, not by the name's ending. Throws Error(kInput) that names the file: missing,
// truncated, damaged, or of neither format.
std::unique_ptr<TensorFile> OpenTensorFile(const std::string& path);

}  // namespace winnow
