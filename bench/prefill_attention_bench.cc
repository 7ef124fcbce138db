// Prefill attention against the peak of f32 multiply-adds on the same threads.
//
// One multiply-add counts as two operations, only visible pairs of query and token count, and peak
// and attention alternate. `prefill_attention_bench [--threads N] [--repetitions N] [--filter
// TEXT]`.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "bench/attention_bench.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "ops/prefill_attention.h"

namespace winnow {
namespace {

struct Case {
  int query_heads, kv_heads, head_dim;
  int64_t depth;  // tokens before the chunk
  int64_t chunk;
  DType dtype;
};

using Vector4 [[gnu::vector_size(16)]] = float;
#if defined(__x86_64__)
using Vector8 [[gnu::vector_size(32)]] = float;
using Vector16 [[gnu::vector_size(64)]] = float;
#endif
// Enough to cover two ports of latency 5, few enough for 16 registers.
constexpr int kPeakChains = 12;
constexpr int64_t kPeakSteps = 2'000'000;

// NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses.
// Defines name(sink): twelve chains of x = x·0.5 + 1 that start apart, lest the compiler see one.
// It adds something of the result to *sink, so that it is computed, and returns the number of
// operations. A macro, since GCC takes vectors apart before it inlines: a shared template would
// become SSE.
#define WINNOW_DEFINE_MULTIPLY_ADDS(name, Vector, attributes)                             \
  attributes double name(float* sink) {                                                   \
    Vector x[kPeakChains];                                                                \
    for (int i = 0; i < kPeakChains; ++i) x[i] = Vector{} + static_cast<float>(i);        \
    const Vector a = Vector{} + 0.5f;                                                     \
    const Vector b = Vector{} + 1.0f;                                                     \
    for (int64_t step = 0; step < kPeakSteps; ++step) {                                   \
      _Pragma("GCC unroll 12") for (int i = 0; i < kPeakChains; ++i) x[i] = x[i] * a + b; \
    }                                                                                     \
    for (const Vector& v : x) *sink += v[0];                                              \
    return 0.5 * kPeakSteps * kPeakChains * sizeof(Vector);                               \
  }

// NOLINTEND(bugprone-macro-parentheses)

WINNOW_DEFINE_MULTIPLY_ADDS(MultiplyAdds128, Vector4, )
#if defined(__x86_64__)
WINNOW_DEFINE_MULTIPLY_ADDS(MultiplyAdds256, Vector8, [[gnu::target("avx2,fma")]])
WINNOW_DEFINE_MULTIPLY_ADDS(MultiplyAdds512, Vector16, [[gnu::target("avx512f")]])
#endif

double WidestMultiplyAdds(float* sink) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return MultiplyAdds512(sink);
  if (__builtin_cpu_supports("fma")) return MultiplyAdds256(sink);
#endif
  return MultiplyAdds128(sink);
}

// Pages in random order whose values are all ordinary numbers; which ones does not matter.
struct Cache {
  explicit Cache(const Case& c)
      : layout(c.kv_heads, kDefaultPageSlots, c.head_dim, c.dtype),
        n_tokens(c.depth + c.chunk),
        pages((n_tokens + layout.slots - 1) / layout.slots),
        memory(pages.size() * layout.page_bytes) {
    Rng rng(1);
    for (size_t i = 0; i + 1 < memory.size(); i += 2) {
      const uint16_t half = OrdinaryHalf(rng);
      std::memcpy(memory.data() + i, &half, sizeof(half));
    }
    std::iota(pages.begin(), pages.end(), 0);
    Shuffle(rng, pages);
  }
  PagedKv View() const {
    return {.layout = &layout, .base = memory.data(), .pages = pages, .n_tokens = n_tokens};
  }

  PageLayout layout;
  int64_t n_tokens;
  std::vector<PageId> pages;
  AlignedBuffer<std::byte> memory;
};

void Run(ThreadPool& pool, const Case& c, const std::string& name, int repetitions) {
  const Cache cache(c);
  Rng rng(2);
  const std::vector<float> q = NormalValues(rng, c.chunk * c.query_heads * c.head_dim);
  std::vector<float> out(q.size());
  const std::vector<int64_t> begin(static_cast<size_t>(c.chunk), 0);
  std::vector<int64_t> end(begin.size());
  std::iota(end.begin(), end.end(), c.depth + 1);
  const PrefillAttentionParams params{.q = {q.data(), {c.chunk, c.query_heads, c.head_dim}},
                                      .out = {out.data(), {c.chunk, c.query_heads, c.head_dim}},
                                      .kv = cache.View(),
                                      .begin = begin,
                                      .end = end,
                                      .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))};
  PrefillWorkspace workspace;
  std::vector<float> sinks(static_cast<size_t>(pool.size()));
  std::vector<double> peak_operations(sinks.size());

  const auto multiply_add = [&](int thread, int /*n_threads*/) {
    peak_operations[thread] = WidestMultiplyAdds(&sinks[thread]);
  };
  const auto [peak_seconds, seconds] = AlternatingMedians(
      repetitions, [&] { pool.Run(multiply_add); },
      [&] { PrefillAttention(pool, params, workspace, nullptr); });
  const auto pairs = static_cast<double>(std::accumulate(end.begin(), end.end(), int64_t{0}));
  const double operations = 4.0 * c.query_heads * c.head_dim * pairs;
  const double peak =
      std::accumulate(peak_operations.begin(), peak_operations.end(), 0.0) / peak_seconds;
  const double rate = operations / seconds;
  fmt::print("{} {:>6} {:>6} {:>5} {:>9.2f} {:>9.1f} {:>9.1f} {:>8.2f}\n", name, c.depth, c.chunk,
             DTypeName(c.dtype), seconds * 1e3, rate * 1e-9, peak * 1e-9, rate / peak);
}

void RunAll(ThreadPool& pool, const AttentionBenchFlags& flags) {
  fmt::print("{:<17} {:>6} {:>6} {:>5} {:>9} {:>9} {:>9} {:>8}\n", "shape", "depth", "chunk", "KV",
             "ms", "GFLOP/s", "peak", "of peak");
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kF32}) {
    for (const Case& c : {
             Case{9, 3, 64, 0, 512, dtype},
             Case{9, 3, 64, 2048, 512, dtype},
             Case{9, 3, 64, 6288, 512, dtype},
             Case{32, 8, 128, 6288, 512, dtype},
         }) {
      const std::string name =
          fmt::format("H={:<3} K={:<2} D={:<4}", c.query_heads, c.kv_heads, c.head_dim);
      if (flags.Chosen(name, dtype)) Run(pool, c, name, flags.repetitions);
    }
  }
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::AttentionBenchMain(
      argc, argv, "Prefill attention against the peak of f32 multiply-adds on the same threads.",
      winnow::RunAll);
}
