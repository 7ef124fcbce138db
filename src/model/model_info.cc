#include "model/model_info.h"

#include <ggml.h>

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

ModelInfo ReadModelInfo(const std::string& path) {
  const GgufFile file(path);
  ModelInfo info;
  info.config = ReadModelConfig(file);
  CountTensors(file, &info);
  return info;
}

}  // namespace winnow
