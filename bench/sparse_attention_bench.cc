// Sparse decode attention of one shape against our own dense one and ggml's flash attention.
//
// One layer at a time, over several layers in turn, so that no cache holds what is read; the sides
// alternate, the ratio is that of the medians. What is read depends on how concentrated attention
// is, so the logits are made as on real text: they spread by 1.7 inside a page and by 3 between
// pages, and the queries of a group agree mostly. Then 32 pages of 1,024 hold most of the mass.
// `sparse_attention_bench [--threads N] [--repetitions N] [--filter TEXT]`.
#include <fmt/format.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "attention/sparse_decode.h"
#include "bench/attention_bench.h"
#include "core/check.h"
#include "kv/page_pool.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"
#include "policy/arm.h"

namespace winnow {
namespace {

constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr double kSpreadInPage = 1.7;
constexpr double kSpreadOfPages = 3.0;
constexpr double kGroupAgreement = 0.8;  // cosine of a query to what its group has in common

const DecodeAttentionParams kParams{.query_heads = kQueryHeads,
                                    .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))};

// Layers of one sequence: the first has random keys and values, the others its pages in another
// order.
class Layers {
 public:
  Layers(ThreadPool& threads, int64_t n_tokens, int n_layers, PlaneSet planes)
      : n_tokens_(n_tokens),
        pool_(PageLayout(kKvHeads, kDefaultPageSlots, kHeadDim, DType::kF16, planes),
              n_tokens / kDefaultPageSlots * n_layers),
        kv_(&pool_, n_layers) {
    Rng rng(1);
    std::vector<int32_t> positions(static_cast<size_t>(n_tokens));
    std::iota(positions.begin(), positions.end(), 0);
    for (int layer = 0; layer < n_layers; ++layer) WINNOW_CHECK(kv_.Append(layer, positions));
    for (int64_t first = 0; first < n_tokens; first += kDefaultPageSlots) FillPage(rng, first);
    std::vector<int64_t> order(static_cast<size_t>(n_tokens / kDefaultPageSlots));
    std::iota(order.begin(), order.end(), 0);
    const PageLayout& layout = pool_.layout();
    for (int layer = 1; layer < n_layers; ++layer) {
      Shuffle(rng, order);
      for (int64_t page = 0; page < std::ssize(order); ++page) {
        std::memcpy(kv_.WritablePage(layer, page * layout.slots),
                    pool_.data(kv_.pages(0)[order[page]]), layout.page_bytes);
      }
    }
    for (int layer = 0; layer < n_layers; ++layer) {
      UpdatePlanes(threads, &kv_, layer, 0, n_tokens);
    }
    constexpr int kGroup = kQueryHeads / kKvHeads;
    const std::vector<float> common = NormalValues(rng, kKvHeads * kHeadDim);
    q_ = NormalValues(rng, kQueryHeads * kHeadDim);
    for (int i = 0; i < kQueryHeads * kHeadDim; ++i) {
      const int in_group = i / (kGroup * kHeadDim) * kHeadDim + i % kHeadDim;
      q_[i] = Mix(common[in_group], kGroupAgreement, q_[i]);
    }
  }

  int size() const { return kv_.n_layers(); }
  int64_t n_tokens() const { return n_tokens_; }
  const float* q() const { return q_.data(); }
  PagedKv View(int layer) const { return kv_.View(layer); }
  LayerQuery Query(int layer) const {
    return {.q = q(), .kv = kv_.View(layer), .super_pages = kv_.SuperPages(layer)};
  }

 private:
  // a and b have unit variance; so has the result, whose correlation with a is `cosine`.
  static float Mix(float a, double cosine, float b) {
    return static_cast<float>(cosine * a + std::sqrt(1 - cosine * cosine) * b);
  }
  void FillPage(Rng& rng, int64_t first) {
    constexpr int64_t kRow = kKvHeads * kHeadDim;
    const std::vector<float> page = NormalValues(rng, kRow);
    std::vector<float> keys = NormalValues(rng, kDefaultPageSlots * kRow);
    const std::vector<float> values = NormalValues(rng, kDefaultPageSlots * kRow);
    for (size_t i = 0; i < keys.size(); ++i) {
      // A query has unit variance a channel, so these are the spreads of its logits.
      keys[i] = static_cast<float>(kSpreadInPage * keys[i] + kSpreadOfPages * page[i % kRow]);
    }
    StoreKv(&kv_, 0, first, {keys.data(), {kDefaultPageSlots, kKvHeads, kHeadDim}},
            {values.data(), {kDefaultPageSlots, kKvHeads, kHeadDim}});
  }

  int64_t n_tokens_;
  PagePool pool_;
  SequenceKv kv_;
  std::vector<float> q_;
};

// One side of the comparison: attention of all layers in turn.
class Dense {
 public:
  Dense(ThreadPool& threads, const Layers& layers) : threads_(threads), layers_(layers) {}
  void operator()() {
    for (int layer = 0; layer < layers_.size(); ++layer) {
      const DecodeQuery query{.q = layers_.q(),
                              .kv = layers_.View(layer),
                              .begin = 0,
                              .end = layers_.n_tokens(),
                              .out = out_.data()};
      DecodeAttention(threads_, {&query, 1}, kParams, workspace_, nullptr);
    }
  }

 private:
  ThreadPool& threads_;
  const Layers& layers_;
  DecodeWorkspace workspace_;
  std::vector<float> out_ = std::vector<float>(kQueryHeads * kHeadDim);
};

class Sparse {
 public:
  Sparse(ThreadPool& threads, const Layers& layers, const std::string& arm)
      : layers_(layers), sparse_(&threads), policy_(MakeDecodePolicy(arm)) {}
  void operator()() {
    account_ = {};
    ++n_rounds_;
    for (int layer = 0; layer < layers_.size(); ++layer) {
      const SparseSlot slot{
          .query = layers_.Query(layer), .out = out_.data(), .account = &account_};
      sparse_.Attend(*policy_, layer, kParams, {&slot, 1}, &seconds_);
    }
  }
  // Of dense's bytes.
  double ByteShare() const {
    return static_cast<double>(account_.bytes_read) / static_cast<double>(account_.bytes_dense);
  }
  // Milliseconds a layer of a stage, by its own timer, on average.
  double Stage(double StageSeconds::*stage) const {
    return 1e3 * (seconds_.*stage) / (n_rounds_ * layers_.size());
  }

 private:
  const Layers& layers_;
  SparseDecode sparse_;
  std::unique_ptr<DecodePolicy> policy_;
  AttentionAccount account_;
  StageSeconds seconds_;
  int n_rounds_ = 0;
  std::vector<float> out_ = std::vector<float>(kQueryHeads * kHeadDim);
};

// ggml's flash attention over keys and values as llama.cpp keeps them, [S, K, D] of each layer.
class GgmlFlashAttention {
 public:
  GgmlFlashAttention(ThreadPool& threads, const Layers& layers) : threads_(threads) {
    const int64_t n = layers.n_tokens();
    const auto layer_bytes = static_cast<size_t>(n * kKvHeads * kHeadDim) * sizeof(uint16_t);
    out_.resize(kQueryHeads * kHeadDim);
    for (int layer = 0; layer < layers.size(); ++layer) {
      ggml_context* ctx = contexts_.emplace_back(NewContext()).get();
      ggml_tensor* q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, kHeadDim, 1, kQueryHeads);
      q->data = const_cast<float*>(layers.q());
      ggml_tensor* rows[2];
      for (int i = 0; i < 2; ++i) {  // keys, values
        ggml_tensor* tensor = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, kHeadDim, kKvHeads, n);
        tensor->data = rows_.emplace_back(layer_bytes).data();
        CopyRows(layers.View(layer), i == 0, static_cast<std::byte*>(tensor->data));
        rows[i] = ggml_permute(ctx, tensor, 0, 2, 1, 3);
      }
      ggml_tensor* out =
          ggml_flash_attn_ext(ctx, q, rows[0], rows[1], nullptr, kParams.scale, 0, 0);
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
      for (int head = 0; head < kKvHeads; ++head) {
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
    {"sketch", "select=sketch,bits=4,budget=1024,dense_layers=0", true},
    {"faithful", "select=sketch,bits=4,budget=1024,residual=sketch"},
};

void RunLength(ThreadPool& threads, const AttentionBenchFlags& flags, int64_t n_tokens,
               int n_layers) {
  for (const Case& c : kCases) {
    const std::string name = fmt::format("S={} {}", n_tokens, c.name);
    if (name.find(flags.filter) == std::string::npos) continue;
    const Layers layers(threads, n_tokens, n_layers, ArmPlanes({c.arm}));
    Dense dense(threads, layers);
    Sparse sparse(threads, layers, c.arm);
    const auto [d, s] = AlternatingMedians(flags.repetitions, dense, sparse);
    fmt::print("{:<20} {:>7.2f} {:>7.2f} {:>6.1f} {:>6.2f}", name, 1e3 * d / n_layers,
               1e3 * s / n_layers, d / s, sparse.ByteShare());
    for (double StageSeconds::*stage :
         {&StageSeconds::score, &StageSeconds::select, &StageSeconds::attention,
          &StageSeconds::estimate, &StageSeconds::account}) {
      fmt::print(" {:>8.3f}", sparse.Stage(stage));
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
  fmt::print("H={} K={} D={}, f16\n", kQueryHeads, kKvHeads, kHeadDim);
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
