// What bounds a layer's attention, as floats and read from the file itself: for diagnoses of
// operator norms. A backbone keeps its weights in the form that it computes fastest from.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor_view.h"
#include "model/config.h"
#include "model/gguf_file.h"

namespace winnow {

// y = W x, W [rows, columns].
struct FloatMatrix {
  std::vector<float> data;
  int64_t rows = 0;
  int64_t columns = 0;

  TensorView<const float, 2> View() const { return {data.data(), {rows, columns}}; }
  // Rows [begin, begin + n).
  TensorView<const float, 2> Rows(int64_t begin, int64_t n) const {
    return View().Slice(begin, begin + n);
  }
};

struct AttentionMatrices {
  FloatMatrix q, k, v;                        // [H·D, E], [K·D, E], [K·D, E]
  std::vector<float> q_bias, k_bias, v_bias;  // as many as rows, or empty
  FloatMatrix output;                         // [E, H·D]
  std::vector<float> norm, mlp_norm;          // γ before attention and before the MLP [E]
  std::vector<float> q_norm, k_norm;          // γ of each head [D], or empty
  std::vector<float> post_norm;               // γ of what attention gives [E], or empty
};

// Of `layer` (from 0), dequantised. `config` is the file's own. Throws Error(kInput) where a tensor
// is missing, of another shape, or cannot be read.
AttentionMatrices ReadAttentionMatrices(const GgufFile& file, const ModelConfig& config, int layer);

struct ReadoutBounds {
  double largest_row = 0;   // the largest norm of a row of the vocabulary projection
  std::vector<float> norm;  // γ before it [E]
};
// A row at a time: the projection is often the model's largest matrix. Throws as above.
ReadoutBounds ReadReadoutBounds(const GgufFile& file, const ModelConfig& config);

}  // namespace winnow
