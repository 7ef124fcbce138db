// Models of known shapes with seeded random weights, for measurements of speed where the real file
// is not at hand. What they answer means nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

// Whether a model's name asks for one: "synthetic:SHAPE[,layers=N][,type=q4_0|q8_0]".
bool IsSyntheticName(std::string_view name);

// The known shapes, such as "llama-3.1-8b".
std::vector<std::string> SyntheticShapes();

// The attention of a layer of such a shape.
struct SyntheticHeads {
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};
// Of a known shape, named without a prefix. Throws Error(kUsage) for an unknown one.
SyntheticHeads HeadsOfShape(std::string_view shape);

// Bytes of such a model's file, without making it. Throws as MakeSyntheticModel does, but for
// memory.
int64_t SyntheticModelBytes(const std::string& name);

// Writes the model as GGUF into an anonymous file in memory that lives as long as the process, and
// returns its path, which the process itself can open. The same name gives the same bytes. Matrices
// are q4_0 unless the name says otherwise, and random codes under one scale; norms are 1. It takes
// its bytes of memory, and loading it as much again. Throws Error(kUsage) for an unknown shape, key
// or value, Error(kResource) if there is too little memory.
std::string MakeSyntheticModel(const std::string& name);

}  // namespace winnow
