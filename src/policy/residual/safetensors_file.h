// A safetensors file: 8 bytes of length, a JSON header, then the tensors' data without holes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "policy/residual/tensor_file.h"

namespace winnow {

class SafetensorsFile : public TensorFile {
 public:
  // Reads and checks the header. Throws Error(kInput) that names the file: unreadable, not of the
  // format, truncated, with tensors that overlap or leave bytes out, or of more than four axes.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const override { return path_; }
  std::vector<std::string> Names() const override;
  std::optional<FileShape> Shape(const std::string& name) const override;
  std::optional<std::string> Metadata(const std::string& key) const override;
  void Read(const std::string& name, std::span<float> out) const override;  // F32, F16 or BF16

 private:
  struct Entry {
    std::string dtype;
    FileShape shape{};
    uint64_t begin = 0;  // bytes after the header
    uint64_t end = 0;
  };

  void ParseHeader(const std::string& text);
  void CheckCoverage(uint64_t data_bytes) const;

  std::string path_;
  uint64_t data_offset_ = 0;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace winnow
