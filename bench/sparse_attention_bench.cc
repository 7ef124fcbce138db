// Sparse decode attention of one shape against our own dense one and ggml's flash attention.
//
// One layer at a time, over several layers in turn (synthetic_layers.h); the sides alternate, the
// ratio is that of the medians.
// `sparse_attention_bench [--threads N] [--repetitions N] [--filter TEXT]`.
#include <fmt/format.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/attention_bench.h"
#include "bench/synthetic_layers.h"
#include "policy/arm.h"

namespace winnow {
namespace {

constexpr SyntheticHeads kHeads{.query_heads = 32, .kv_heads = 8, .head_dim = 128};

// ggml's flash attention over keys and values as llama.cpp keeps them, [S, K, D] of each layer.
class GgmlFlashAttention {
 public:
  GgmlFlashAttention(ThreadPool& threads, const SyntheticLayers& layers) : threads_(threads) {
    const int64_t n = layers.n_tokens();
    const auto layer_bytes =
        static_cast<size_t>(n * kHeads.kv_heads * kHeads.head_dim) * sizeof(uint16_t);
    out_.resize(layers.out_floats());
    for (int layer = 0; layer < layers.size(); ++layer) {
      ggml_context* ctx = contexts_.emplace_back(NewContext()).get();
      ggml_tensor* q =
          ggml_new_tensor_3d(ctx, GGML_TYPE_F32, kHeads.head_dim, 1, kHeads.query_heads);
      q->data = const_cast<float*>(layers.q());
      ggml_tensor* rows[2];
      for (int i = 0; i < 2; ++i) {  // keys, values
        ggml_tensor* tensor =
            ggml_new_tensor_3d(ctx, GGML_TYPE_F16, kHeads.head_dim, kHeads.kv_heads, n);
        tensor->data = rows_.emplace_back(layer_bytes).data();
        CopyRows(layers.View(layer), i == 0, static_cast<std::byte*>(tensor->data));
        rows[i] = ggml_permute(ctx, tensor, 0, 2, 1, 3);
      }
      ggml_tensor* out =
          ggml_flash_attn_ext(ctx, q, rows[0], rows[1], nullptr, layers.params().scale, 0, 0);
      out->data = out_.data();
      graphs_.push_back(ggml_new_graph(ctx));
      ggml_build_forward_expand(graphs_.back(), out);
    }
  }
  void operator()() {
    for (ggml_cgraph* graph : graphs_) threads_.Compute(graph);
  }

 private:
  struct FreeContext {
    void operator()(ggml_context* ctx) const { ggml_free(ctx); }
  };
  using Context = std::unique_ptr<ggml_context, FreeContext>;

  static Context NewContext() {
    return Context(ggml_init({.mem_size = ggml_graph_overhead() + 16 * ggml_tensor_overhead(),
                              .mem_buffer = nullptr,
                              .no_alloc = true}));
  }
  static void CopyRows(const PagedKv& kv, bool keys, std::byte* to) {
    const PageLayout& layout = *kv.layout;
    for (int64_t token = 0; token < kv.n_tokens; ++token) {
      for (int head = 0; head < kHeads.kv_heads; ++head) {
        const std::byte* block =
            keys ? kv.Keys(token / layout.slots, head) : kv.Values(token / layout.slots, head);
        std::memcpy(to, block + static_cast<size_t>(token % layout.slots) * layout.row_bytes,
                    layout.row_bytes);
        to += layout.row_bytes;
      }
    }
  }

  ThreadPool& threads_;
  std::vector<Context> contexts_;
  std::vector<AlignedBuffer<std::byte>> rows_;
  std::vector<float> out_;
  std::vector<ggml_cgraph*> graphs_;
};

struct Case {
  const char* name;
  const char* arm;
  bool with_ggml = false;
};

const Case kCases[] = {
    {"mean", "select=vashista,budget=1024,Kc=0,dense_layers=0"},
    {"mean and deviation", "select=meanstd,budget=1024,dense_layers=0"},
    {"cascade", "select=cascade,budget=1024,dense_layers=0"},
    {"cascade of mean keys", "select=cascade,summary=mean,budget=1024,dense_layers=0"},
    {"sketch", "select=sketch,bits=4,budget=1024,dense_layers=0", true},
    {"faithful", "select=sketch,bits=4,budget=1024,residual=sketch"},
};

void RunLength(ThreadPool& threads, const AttentionBenchFlags& flags, int64_t n_tokens,
               int n_layers) {
  for (const Case& c : kCases) {
    const std::string name = fmt::format("S={} {}", n_tokens, c.name);
    if (name.find(flags.filter) == std::string::npos) continue;
    const SyntheticLayers layers(threads, {.heads = kHeads,
                                           .n_tokens = n_tokens,
                                           .n_layers = n_layers,
                                           .planes = ArmPlanes({c.arm})});
    DenseRound dense(threads, layers);
    SparseRound sparse(threads, layers, c.arm);
    const auto [d, s] = AlternatingMedians(flags.repetitions, dense, sparse);
    fmt::print("{:<28} {:>7.2f} {:>7.2f} {:>6.1f} {:>6.2f}", name, 1e3 * d / n_layers,
               1e3 * s / n_layers, d / s, sparse.ByteShare());
    for (double StageSeconds::*stage :
         {&StageSeconds::score, &StageSeconds::select, &StageSeconds::attention,
          &StageSeconds::estimate, &StageSeconds::account}) {
      fmt::print(" {:>8.3f}", sparse.StageMs(stage));
    }
    if (c.with_ggml) {
      GgmlFlashAttention ggml(threads, layers);
      const auto [g, s2] = AlternatingMedians(flags.repetitions, ggml, sparse);
      fmt::print(" {:>7.2f} {:>6.1f}", 1e3 * g / n_layers, g / s2);
    }
    fmt::print("  {}\n", c.arm);
  }
}

void RunAll(ThreadPool& threads, const AttentionBenchFlags& flags) {
  fmt::print("H={} K={} D={}, f16\n", kHeads.query_heads, kHeads.kv_heads, kHeads.head_dim);
  fmt::print("{:<28} {:>7} {:>7} {:>6} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>6}\n",
             "milliseconds a layer", "dense", "sparse", "ratio", "bytes", "score", "select",
             "attend", "estimate", "account", "ggml", "ratio");
  RunLength(threads, flags, 32768, 8);
  RunLength(threads, flags, 262144, 2);
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::AttentionBenchMain(
      argc, argv, "Sparse decode attention against dense and against ggml's flash attention.",
      winnow::RunAll);
}
