#include "model/gemv.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"

namespace winnow {
namespace {

constexpr int64_t kLineFloats = kAlignment / sizeof(float);

// Rows that a thread does without asking: three quarters of its even share, in whole cache lines.
// What is left is claimed bit by bit, so that threads end together although one may be held up.
int64_t OwnRows(int64_t rows, int n_threads) {
  return rows * 3 / 4 / n_threads / kLineFloats * kLineFloats;
}

// Rows of a claim; a claim costs about 0.1 µs, as much as a few rows.
int64_t RowsPerClaim(int64_t rows, int n_threads) {
  constexpr int64_t kFewestRows = 2 * kLineFloats;
  constexpr int64_t kMostRows = 16 * kLineFloats;
  constexpr int64_t kClaimsPerThread = 8;
  const int64_t left = rows - n_threads * OwnRows(rows, n_threads);
  const int64_t even = left / (kClaimsPerThread * n_threads) / kLineFloats * kLineFloats;
  return std::clamp(even, kFewestRows, kMostRows);
}

// The same operations in the same order as ggml's RMS norm followed by its product.
void RmsNorm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i] * x[i]);
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace

GemvScratch::GemvScratch(int n_threads, int64_t max_columns)
    : stride_((max_columns + kLineFloats - 1) / kLineFloats * kLineFloats),
      normed_(n_threads * stride_),
      converted_(n_threads * stride_) {}

Gemv::Gemv(const Options& options, GemvScratch* scratch, int n_threads)
    : options_(options),
      scratch_(scratch),
      n_threads_(n_threads),
      own_rows_(OwnRows(options.linear.weight->ne[1], n_threads)),
      first_claim_(n_threads * own_rows_),
      rows_per_claim_(RowsPerClaim(options.linear.weight->ne[1], n_threads)) {
  WINNOW_CHECK(Supports(options.linear));
}

bool Gemv::Supports(const Linear& linear) {
  return ggml_backend_buffer_is_host(linear.weight->buffer);
}

ggml_tensor* Gemv::Node(ggml_context* context, ggml_tensor* input, ggml_tensor* before) {
  std::array<ggml_tensor*, 2> sources = {input, before};
  return ggml_custom_4d(context, GGML_TYPE_F32, options_.linear.weight->ne[1], 1, 1, 1,
                        sources.data(), before == nullptr ? 1 : 2, &Gemv::Run, GGML_N_TASKS_MAX,
                        this);
}

// The input normed and in the type of the dot product, in memory of this thread.
const void* Gemv::Prepare(const float* input, int thread) const {
  const ggml_tensor* weight = options_.linear.weight;
  const int64_t n = weight->ne[0];
  if (options_.norm != nullptr) {
    float* normed = scratch_->Normed(thread);
    RmsNorm(input, static_cast<const float*>(options_.norm->data), n, options_.epsilon, normed);
    input = normed;
  }
  const ggml_type type = ggml_get_type_traits_cpu(weight->type)->vec_dot_type;
  if (type == GGML_TYPE_F32) return input;
  void* converted = scratch_->Converted(thread);
  ggml_get_type_traits_cpu(type)->from_float(input, converted, n);
  return converted;
}

void Gemv::Rows(const void* vector, int64_t begin, int64_t end, float* y) const {
  const ggml_tensor* weight = options_.linear.weight;
  const float* bias = options_.linear.bias == nullptr
                          ? nullptr
                          : static_cast<const float*>(options_.linear.bias->data);
  const ggml_vec_dot_t dot = ggml_get_type_traits_cpu(weight->type)->vec_dot;
  const auto columns = static_cast<int>(weight->ne[0]);
  for (int64_t row = begin; row < end; ++row) {
    float value = 0;
    dot(columns, &value, 0, static_cast<const char*>(weight->data) + row * weight->nb[1], 0, vector,
        0, 1);
    if (bias != nullptr) value += bias[row];
    y[row] = options_.accumulate ? y[row] + value : value;
  }
}

void Gemv::Run(ggml_tensor* out, int thread, int n_threads, void* self) {
  auto& gemv = *static_cast<Gemv*>(self);
  WINNOW_CHECK(n_threads == gemv.n_threads_, "{} threads", n_threads);
  const void* vector = gemv.Prepare(static_cast<const float*>(out->src[0]->data), thread);
  auto* y = static_cast<float*>(out->data);
  gemv.Rows(vector, thread * gemv.own_rows_, (thread + 1) * gemv.own_rows_, y);
  const int64_t rows = gemv.options_.linear.weight->ne[1];
  while (true) {
    const int64_t begin = gemv.next_row_.fetch_add(gemv.rows_per_claim_, std::memory_order_relaxed);
    if (begin >= rows) return;
    gemv.Rows(vector, begin, std::min(begin + gemv.rows_per_claim_, rows), y);
  }
}

}  // namespace winnow
