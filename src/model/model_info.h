// What `winnow inspect` tells of a model file, read without loading the weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model/config.h"
#include "model/gguf_file.h"

namespace winnow {

struct ModelInfo {
  struct TypeCount {
    int64_t tensors = 0;
    int64_t parameters = 0;
    int64_t bytes = 0;
  };

  ModelConfig config;
  int64_t file_bytes = 0;
  int64_t parameters = 0;                  // over all tensors of the file
  int64_t tensor_bytes = 0;                // likewise
  std::map<std::string, TypeCount> types;  // by ggml's name of the type, such as "q4_1"
};

// Throws Error(kInput) as LoadCpuBackbone does for the file and its metadata.
ModelInfo ReadModelInfo(const std::string& path);

// Fills in what the file's tensors say: all but the configuration.
void CountTensors(const GgufFile& file, ModelInfo* info);

}  // namespace winnow
