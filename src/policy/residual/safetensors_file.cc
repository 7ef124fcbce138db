#include "policy/residual/safetensors_file.h"

#include <ggml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/check.h"
#include "core/error.h"

namespace winnow {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

// Bytes of one value; 0 for a type that is not known here.
uint64_t ValueBytes(const std::string& dtype) {
  static const std::map<std::string, uint64_t> kBytes = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"U64", 8}, {"I32", 4},
      {"U32", 4}, {"I16", 2}, {"U16", 2}, {"I8", 1},   {"U8", 1},  {"BOOL", 1}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

// The JSON value as an array of `n` counts, or nothing.
std::optional<std::vector<uint64_t>> Counts(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<uint64_t> counts;
  for (const Json& value : json) {
    if (!value.is_number_unsigned()) return std::nullopt;
    counts.push_back(value.get<uint64_t>());
  }
  return counts;
}

// Product of the extents and `value_bytes`, or nothing if it does not fit into 62 bits.
std::optional<uint64_t> TensorBytes(const std::vector<uint64_t>& shape, uint64_t value_bytes) {
  constexpr uint64_t kMax = uint64_t{1} << 62;
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  uint64_t bytes = value_bytes;
  for (uint64_t extent : shape) {
    if (extent > kMax / bytes) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  std::error_code error;
  const uint64_t file_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) Throw(ErrorKind::kInput, "cannot read {}", path);
  std::array<unsigned char, kLengthBytes> length{};
  if (!file.read(reinterpret_cast<char*>(length.data()), kLengthBytes)) {
    Throw(ErrorKind::kInput, "{} is neither a GGUF nor a safetensors file: too short", path);
  }
  uint64_t header_bytes = 0;  // little-endian
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= uint64_t{length[i]} << (8 * i);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    Throw(ErrorKind::kInput,
          "{} is neither a GGUF nor a safetensors file, or is truncated: a header of {} bytes in a "
          "file of {}",
          path, header_bytes, file_bytes);
  }
  std::string header(header_bytes, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(header_bytes))) {
    Throw(ErrorKind::kInput, "cannot read {}", path);
  }
  data_offset_ = kLengthBytes + header_bytes;
  ParseHeader(header);
  CheckCoverage(file_bytes - data_offset_);
}

void SafetensorsFile::ParseHeader(const std::string& text) {
  const Json header = Json::parse(text, nullptr, false);
  if (!header.is_object()) {
    Throw(ErrorKind::kInput, "{} is damaged: its safetensors header is not a JSON object", path_);
  }
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") {
      if (!json.is_object()) Throw(ErrorKind::kInput, "{}: __metadata__ is no object", path_);
      for (const auto& [key, value] : json.items()) {
        if (!value.is_string()) {
          Throw(ErrorKind::kInput, "{}: the metadata key '{}' is no text", path_, key);
        }
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    const bool complete = json.is_object() && json.contains("dtype") && json["dtype"].is_string() &&
                          json.contains("shape") && json.contains("data_offsets");
    const auto shape = complete ? Counts(json["shape"]) : std::nullopt;
    const auto offsets = complete ? Counts(json["data_offsets"]) : std::nullopt;
    if (!shape || !offsets || offsets->size() != 2 || shape->size() > FileShape{}.size()) {
      Throw(ErrorKind::kInput,
            "{}: tensor '{}' has no usable dtype, shape (of up to four axes) and data_offsets",
            path_, name);
    }
    Entry entry{json["dtype"].get<std::string>(), {1, 1, 1, 1}, (*offsets)[0], (*offsets)[1]};
    const uint64_t value_bytes = ValueBytes(entry.dtype);
    const auto bytes = value_bytes == 0 ? std::nullopt : TensorBytes(*shape, value_bytes);
    if (!bytes || entry.end < entry.begin || entry.end - entry.begin != *bytes) {
      Throw(ErrorKind::kInput, "{}: the bytes {} to {} do not fit the shape and type {} of '{}'",
            path_, entry.begin, entry.end, entry.dtype, name);
    }
    std::copy(shape->begin(), shape->end(),
              entry.shape.end() - static_cast<std::ptrdiff_t>(shape->size()));
    entries_[name] = std::move(entry);
  }
}

void SafetensorsFile::CheckCoverage(uint64_t data_bytes) const {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : entries_) ranges.emplace_back(entry.begin, entry.end);
  std::sort(ranges.begin(), ranges.end());
  uint64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != covered) {
      Throw(ErrorKind::kInput, "{} is damaged: tensors overlap or leave a hole at byte {}", path_,
            data_offset_ + std::min(begin, covered));
    }
    covered = end;
  }
  if (covered != data_bytes) {
    Throw(ErrorKind::kInput, "{} is {}: its tensors take {} bytes, and {} are there", path_,
          covered > data_bytes ? "truncated" : "damaged", covered, data_bytes);
  }
}

std::vector<std::string> SafetensorsFile::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::optional<FileShape> SafetensorsFile::Shape(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  return found->second.shape;
}

std::optional<std::string> SafetensorsFile::Metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return std::nullopt;
  return found->second;
}

void SafetensorsFile::Read(const std::string& name, std::span<float> out) const {
  const auto found = entries_.find(name);
  WINNOW_CHECK(found != entries_.end() && Elements(found->second.shape) == std::ssize(out), "{}",
               name);
  const Entry& entry = found->second;
  const bool half = entry.dtype == "F16";
  if (!half && entry.dtype != "BF16" && entry.dtype != "F32") {
    Throw(ErrorKind::kInput, "{}: tensor '{}' is of type {}; F32, F16 and BF16 can be read", path_,
          name, entry.dtype);
  }
  std::vector<char> bytes(entry.end - entry.begin);
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(data_offset_ + entry.begin));
  if (!file.read(bytes.data(), std::ssize(bytes))) {
    Throw(ErrorKind::kInput, "{}: tensor '{}' cannot be read", path_, name);
  }
  if (entry.dtype == "F32") {
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(out.data()));
  } else if (half) {
    ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t*>(bytes.data()), out.data(),
                          std::ssize(out));
  } else {
    ggml_bf16_to_fp32_row(reinterpret_cast<const ggml_bf16_t*>(bytes.data()), out.data(),
                          std::ssize(out));
  }
}

}  // namespace winnow
