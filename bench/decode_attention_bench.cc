// Decode attention against a plain read of the same bytes by the same threads.
//
// Every row rotates over several layers, so that no cache holds what is read. Reads and attention
// alternate; the ratio is that of the medians. `decode_attention_bench [--threads N] [--repetitions
// N] [--filter TEXT]`.
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "bench/attention_bench.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "kv/page_pool.h"
#include "ops/decode_attention.h"

namespace winnow {
namespace {

struct Case {
  const char* name;
  int query_heads, kv_heads, head_dim;
  int64_t n_tokens;
  int n_layers;
  DType dtype;
};

// Sums `n` words with the widest loads that the processor has.
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
uint64_t
SumWords(const uint64_t* words, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += words[i];
  return sum;
}

// Pages of a real pool, whose memory is what an engine would read, in shuffled order.
class Layers {
 public:
  explicit Layers(const Case& c)
      : layout_(c.kv_heads, kDefaultPageSlots, c.head_dim, c.dtype),
        n_tokens_(c.n_tokens),
        layer_pages_((c.n_tokens + layout_.slots - 1) / layout_.slots),
        pool_(layout_, layer_pages_ * c.n_layers),
        pages_(static_cast<size_t>(c.n_layers)) {
    Rng rng(1);
    // Pages are copies of one: the values do not matter, only that all are normal numbers.
    std::vector<uint16_t> page(layout_.page_bytes / sizeof(uint16_t));
    for (uint16_t& half : page) half = OrdinaryHalf(rng);
    for (std::vector<PageId>& pages : pages_) {
      for (int64_t i = 0; i < layer_pages_; ++i) {
        pages.push_back(pool_.TryAllocate());
        std::memcpy(pool_.data(pages.back()), page.data(), layout_.page_bytes);
      }
      Shuffle(rng, pages);
    }
  }

  const PageLayout& layout() const { return layout_; }
  size_t size() const { return pages_.size(); }
  int64_t layer_pages() const { return layer_pages_; }
  PagedKv View(size_t layer) const {
    return {
        .layout = &layout_, .base = pool_.base(), .pages = pages_[layer], .n_tokens = n_tokens_};
  }
  const uint64_t* Page(size_t layer, int64_t page) const {
    return reinterpret_cast<const uint64_t*>(pool_.data(pages_[layer][page]));
  }

 private:
  PageLayout layout_;
  int64_t n_tokens_;
  int64_t layer_pages_;
  PagePool pool_;
  std::vector<std::vector<PageId>> pages_;
};

void Run(ThreadPool& pool, const Case& c, int repetitions) {
  const Layers layers(c);
  Rng rng(2);
  const std::vector<float> q = NormalValues(rng, int64_t{c.query_heads} * c.head_dim);
  std::vector<float> out(q.size());
  const DecodeAttentionParams params{.query_heads = c.query_heads,
                                     .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))};
  DecodeWorkspace workspace;
  std::atomic<uint64_t> sink = 0;

  const auto attend = [&] {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const DecodeQuery query{.q = q.data(),
                              .kv = layers.View(layer),
                              .begin = 0,
                              .end = c.n_tokens,
                              .out = out.data()};
      DecodeAttention(pool, {&query, 1}, params, workspace, nullptr);
    }
  };
  const auto read = [&] {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      pool.ForEach(layers.layer_pages(), [&](int64_t page, int /*thread*/) {
        sink += SumWords(layers.Page(layer, page), layers.layout().page_bytes / sizeof(uint64_t));
      });
    }
  };

  const auto [r, a] = AlternatingMedians(repetitions, read, attend);
  const auto bytes = static_cast<double>(layers.layout().TokenBytes(c.n_tokens)) * c.n_layers;
  fmt::print("{:<28} {:>5} {:>8.1f} {:>8.1f} {:>7.2f}\n", c.name, DTypeName(c.dtype),
             bytes / r * 1e-9, bytes / a * 1e-9, a / r);
}

void RunAll(ThreadPool& pool, const AttentionBenchFlags& flags) {
  fmt::print("{:<28} {:>5} {:>8} {:>8} {:>7}\n", "shape", "KV", "read", "attend", "ratio");
  fmt::print("{:<28} {:>5} {:>8} {:>8} {:>7}\n", "", "", "GB/s", "GB/s", "");
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kF32}) {
    for (const Case& c : {
             Case{"H=32 K=8 D=128 S=32768", 32, 8, 128, 32768, 8, dtype},
             Case{"H=9 K=3 D=64 S=7000", 9, 3, 64, 7000, 30, dtype},
         }) {
      if (flags.Chosen(c.name, dtype)) Run(pool, c, flags.repetitions);
    }
  }
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::AttentionBenchMain(
      argc, argv, "Decode attention against a plain read of the same bytes by the same threads.",
      winnow::RunAll);
}
