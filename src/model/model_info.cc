#include "model/model_info.h"

#include <ggml.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "model/architecture.h"

namespace winnow {

void CountTensors(const GgufFile& file, ModelInfo* info) {
  info->file_bytes = file.file_bytes();
  for (const ggml_tensor* tensor : file.tensors()) {
    const int64_t parameters = ggml_nelements(tensor);
    const auto bytes = static_cast<int64_t>(ggml_nbytes(tensor));
    ModelInfo::TypeCount& count = info->types[ggml_type_name(tensor->type)];
    ++count.tensors;
    count.parameters += parameters;
    count.bytes += bytes;
    info->parameters += parameters;
    info->tensor_bytes += bytes;
  }
}

int64_t LayersOfTensors(const GgufFile& file) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layers = 0;
  for (const ggml_tensor* tensor : file.tensors()) {
    const std::string_view name = ggml_get_name(tensor);
    int64_t layer = 0;
    if (!name.starts_with(kPrefix)) continue;
    const char* const begin = name.data() + kPrefix.size();
    const auto [rest, error] = std::from_chars(begin, name.data() + name.size(), layer);
    if (error == std::errc()) layers = std::max(layers, layer + 1);
  }
  return layers;
}

ModelInfo ReadModelInfo(const std::string& path) {
  const GgufFile file(path);
  ModelInfo info;
  info.config = ReadModelConfig(file);
  CountTensors(file, &info);
  return info;
}

}  // namespace winnow
