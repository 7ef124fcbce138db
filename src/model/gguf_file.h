// Opens and checks a GGUF file: typed metadata, the list of tensors, and reads of their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct ggml_context;
struct ggml_tensor;
struct gguf_context;

namespace winnow {

class GgufFile {
 public:
  // Reads the header and checks that the data of every tensor lies inside the file. Throws
  // Error(kInput) that names the file: missing, unreadable, not GGUF, damaged, truncated, or one
  // part of a split model.
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }

  // Metadata; nothing where the key is absent. A key of another type throws Error(kInput).
  std::optional<std::string> String(const std::string& key) const;
  std::optional<int64_t> Integer(const std::string& key) const;  // any integer type
  std::optional<double> Real(const std::string& key) const;      // f32 or f64
  std::optional<bool> Bool(const std::string& key) const;
  std::optional<int64_t> ArrayLength(const std::string& key) const;
  // An array of integers or booleans, or nothing where the value is not an array.
  std::optional<std::vector<int64_t>> Integers(const std::string& key) const;

  // Every tensor in the order of the file, without data (type, shape and name only).
  const std::vector<const ggml_tensor*>& tensors() const { return tensors_; }
  // Null where there is none of that name.
  const ggml_tensor* FindTensor(const std::string& name) const;
  // Copies the tensor's bytes (ggml_nbytes) to `destination`. Throws Error(kInput) if the file
  // changed.
  void Read(const ggml_tensor* tensor, void* destination) const;

 private:
  struct Free {
    void operator()(gguf_context* p) const;
    void operator()(ggml_context* p) const;
  };

  void CheckTensors() const;
  int64_t Key(const std::string& key) const;

  std::string path_;
  int descriptor_ = -1;
  int64_t file_bytes_ = 0;
  std::unique_ptr<gguf_context, Free> gguf_;
  std::unique_ptr<ggml_context, Free> tensors_context_;
  std::vector<const ggml_tensor*> tensors_;
};

}  // namespace winnow
