// A matrix times one token's vector as one node of a ggml graph, together with the norm before it
// and the addition after it.
//
// ggml itself spends a barrier each on norm, quantisation of the vector, product, bias and
// residual, and hands out rows 64 at a time, which leaves one of two threads idle for a tenth of a
// 576-row product. Here each thread norms and quantises the vector for itself (a microsecond) and
// rows are shared out evenly; the dot products are ggml's own, so the values are the same
// to the last bit.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/tensor_view.h"
#include "model/weights.h"

struct ggml_context;
struct ggml_tensor;

namespace winnow {

// Memory of one thread: the normed vector, and the vector in the type that the dot product wants.
class GemvScratch {
 public:
  GemvScratch(int n_threads, int64_t max_columns);
  float* Normed(int thread) { return normed_.data() + thread * stride_; }
  void* Converted(int thread) { return converted_.data() + thread * stride_; }

 private:
  int64_t stride_;
  AlignedBuffer<float> normed_;
  AlignedBuffer<float> converted_;  // no such type takes more bytes a value than f32
};

class Gemv {
 public:
  struct Options {
    Linear linear;                      // in plain memory: see Supports
    const ggml_tensor* norm = nullptr;  // [columns]: RMS norm of the input first
    float epsilon = 0;                  // of that norm
    bool accumulate = false;            // adds to what `out` holds
  };

  Gemv(const Options& options, GemvScratch* scratch, int n_threads);

  // Whether rows of the matrix lie in memory as ggml's dot products read them.
  static bool Supports(const Linear& linear);

  // The node: out [rows], from input [columns, 1]. With `accumulate`, `before` is the node that
  // wrote the addend, so that the graph keeps the order; its memory is the node's own.
  ggml_tensor* Node(ggml_context* context, ggml_tensor* input, ggml_tensor* before = nullptr);

  // To be called before each run of the graph.
  void Reset() { next_row_.store(first_claim_, std::memory_order_relaxed); }

 private:
  static void Run(ggml_tensor* out, int thread, int n_threads, void* self);
  const void* Prepare(const float* input, int thread) const;
  void Rows(const void* vector, int64_t begin, int64_t end, float* y) const;

  Options options_;
  GemvScratch* scratch_;
  int n_threads_;
  int64_t own_rows_;     // each thread's, from thread * own_rows_ on
  int64_t first_claim_;  // where the rows begin that are claimed
  int64_t rows_per_claim_;
  std::atomic<int64_t> next_row_ = 0;
};

}  // namespace winnow
