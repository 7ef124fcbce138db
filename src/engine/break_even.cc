#include "engine/break_even.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "attention/sparse_decode.h"
#include "core/check.h"
#include "core/rng.h"
#include "kv/page_pool.h"
#include "kv/sequence_kv.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"
#include "policy/arm.h"

namespace winnow {
namespace {

constexpr int64_t kLeastContext = 1024;
constexpr int64_t kLargestDepth = 4096;
constexpr int64_t kBytes = int64_t{256} << 20;
constexpr int kSlots = kDefaultPageSlots;
constexpr int kDistinctPages = 32;  // of random contents; the others are copies
constexpr int kRounds = 11;
constexpr double kPatience = 3;     // seconds after which rounds that disagree are not repeated
constexpr double kScoreSpread = 2;  // nats

// Layers of random keys and values, and one query for all of them.
class SyntheticLayers {
 public:
  SyntheticLayers(ThreadPool* pool, const ModelConfig& config, DType kv_dtype, PlaneSet planes,
                  int64_t n_tokens, int64_t most_layers)
      : layout_(config.kv_heads, kSlots, config.head_dim, kv_dtype, planes),
        n_pages_(n_tokens / kSlots),
        n_layers_(static_cast<int>(
            std::clamp(kBytes / (n_pages_ * layout_.TotalBytes()), int64_t{1}, most_layers))),
        pages_(layout_, n_pages_ * n_layers_),
        kv_(&pages_, n_layers_) {
    Rng rng(1);
    Fill(pool, &rng);
    const double deviation =
        kScoreSpread / (config.attention_scale * std::sqrt(static_cast<double>(config.head_dim)));
    query_.resize(static_cast<size_t>(config.query_heads) * config.head_dim);
    for (float& x : query_) x = static_cast<float>(deviation * rng.Normal());
  }

  int n_layers() const { return n_layers_; }
  const float* query() const { return query_.data(); }
  // The first `depth` tokens, a multiple of the page.
  PagedKv View(int layer, int64_t depth) const {
    PagedKv view = kv_.View(layer);
    view.pages = view.pages.first(depth / kSlots);
    view.n_tokens = depth;
    return view;
  }

 private:
  void Fill(ThreadPool* pool, Rng* rng) {
    std::vector<int32_t> positions(n_pages_ * kSlots);
    std::iota(positions.begin(), positions.end(), 0);
    for (int layer = 0; layer < n_layers_; ++layer) {
      WINNOW_CHECK(kv_.Append(layer, positions));
    }
    const int64_t n_random = std::min<int64_t>(kDistinctPages, n_pages_) * kSlots;
    const int64_t row = static_cast<int64_t>(layout_.kv_heads) * layout_.head_dim;
    std::vector<float> k(n_random * row);
    std::vector<float> v(n_random * row);
    for (float& x : k) x = static_cast<float>(rng->Normal());
    for (float& x : v) x = static_cast<float>(rng->Normal());
    const std::array<int64_t, 3> shape = {n_random, layout_.kv_heads, layout_.head_dim};
    StoreKv(&kv_, 0, 0, {k.data(), shape}, {v.data(), shape});
    UpdatePlanes(*pool, &kv_, 0, 0, n_random);
    for (int layer = 0; layer < n_layers_; ++layer) {
      for (int64_t page = layer == 0 ? kDistinctPages : 0; page < n_pages_; ++page) {
        Copy(page % kDistinctPages, layer, page);
      }
    }
  }
  void Copy(int64_t from_page, int layer, int64_t page) {
    const int64_t from = from_page * kSlots;
    std::memcpy(kv_.WritablePage(layer, page * kSlots), kv_.WritablePage(0, from),
                layout_.page_bytes);
    if (layout_.side_bytes > 0) {
      std::memcpy(kv_.Planes(layer, page), kv_.Planes(0, from_page), layout_.side_bytes);
    }
  }

  PageLayout layout_;
  int64_t n_pages_;
  int n_layers_;
  PagePool pages_;
  SequenceKv kv_;
  std::vector<float> query_;
};

// Times both sides, taking turns.
class Stopwatch {
 public:
  Stopwatch(ThreadPool* pool, const ModelConfig& config, DecodePolicy* policy,
            const SyntheticLayers& layers)
      : pool_(pool),
        policy_(policy),
        layers_(layers),
        params_{.query_heads = config.query_heads, .scale = config.attention_scale},
        sparse_(pool),
        out_(static_cast<size_t>(config.query_heads) * config.head_dim) {}

  // Nothing if the rounds disagree in every attempt.
  std::optional<AttentionTime> Measure(int64_t depth) {
    std::optional<AttentionTime> time;
    do {
      std::vector<LayerTimes> layers(layers_.n_layers());
      for (int round = 0; round <= kRounds; ++round) Round(depth, round > 0, &layers);
      time = AgreedTime(depth, layers);
    } while (!time.has_value() && Seconds(Clock::now() - start_) < kPatience);
    return time;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double Seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }
  // Layer by layer, so that what disturbs one side is soon at the other. They are at opposite ends
  // of the layers: neither finds in a cache what the other has read.
  void Round(int64_t depth, bool keep, std::vector<LayerTimes>* layers) {
    const int n = layers_.n_layers();
    for (int layer = 0; layer < n; ++layer) {
      const Clock::time_point begin = Clock::now();
      Dense(layer, depth);
      const Clock::time_point middle = Clock::now();
      Sparse((layer + n / 2) % n, depth);
      const Clock::time_point end = Clock::now();
      if (!keep) continue;  // warms up
      (*layers)[layer].dense.push_back(Seconds(middle - begin));
      (*layers)[layer].sparse.push_back(Seconds(end - middle));
    }
  }
  void Dense(int layer, int64_t depth) {
    const DecodeQuery query{.q = layers_.query(),
                            .kv = layers_.View(layer, depth),
                            .begin = 0,
                            .end = depth,
                            .out = out_.data()};
    DecodeAttention(*pool_, {&query, 1}, params_, workspace_, nullptr);
  }
  void Sparse(int layer, int64_t depth) {
    const SparseSlot slot{.query = {layers_.query(), layers_.View(layer, depth)},
                          .n_generated = 1,
                          .out = out_.data(),
                          .account = &account_};
    // One of the model's sparse layers.
    sparse_.Attend(*policy_, policy_->rule.dense_layers + layer, params_, {&slot, 1}, &seconds_);
  }

  ThreadPool* pool_;
  DecodePolicy* policy_;
  const SyntheticLayers& layers_;
  DecodeAttentionParams params_;
  DecodeWorkspace workspace_;
  SparseDecode sparse_;
  AttentionAccount account_;
  StageSeconds seconds_;
  std::vector<float> out_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

std::optional<AttentionTime> AgreedTime(int64_t depth, std::span<const LayerTimes> layers) {
  WINNOW_CHECK(!layers.empty() && !layers[0].dense.empty());
  constexpr double kAgree = 1.15;
  // Means over the layers of the round with this share of faster ones.
  const auto side = [&](std::vector<double> LayerTimes::*times, double share) {
    double sum = 0;
    for (const LayerTimes& layer : layers) {
      std::vector<double> sorted = layer.*times;
      std::sort(sorted.begin(), sorted.end());
      sum += sorted[static_cast<size_t>(share * static_cast<double>(sorted.size()))];
    }
    return sum / static_cast<double>(layers.size());
  };
  const AttentionTime fastest = {depth, side(&LayerTimes::dense, 0), side(&LayerTimes::sparse, 0)};
  const double median = side(&LayerTimes::dense, 0.5) / side(&LayerTimes::sparse, 0.5);
  const double disagreement = median / (fastest.dense / fastest.sparse);
  if (disagreement > kAgree || disagreement < 1 / kAgree) return std::nullopt;
  return fastest;
}

int64_t BreakEvenTokens(std::span<const AttentionTime> times) {
  WINNOW_CHECK(times.size() >= 2);
  constexpr double kStep = 64;
  const auto gain = [&](size_t i) { return times[i].dense - times[i].sparse; };
  // From `after` on the arm is faster at every depth.
  size_t after = times.size();
  while (after > 0 && gain(after - 1) > 0) --after;
  if (after == 0) return times[0].depth;
  const size_t right = std::clamp<size_t>(after, 1, times.size() - 1);
  const size_t left = right - 1;
  const double rise = gain(right) - gain(left);
  if (rise <= 0) return kNeverPays;
  const double crossing =
      static_cast<double>(times[right].depth) -
      gain(right) / rise * static_cast<double>(times[right].depth - times[left].depth);
  const double rounded = std::ceil(crossing / kStep) * kStep;
  return rounded < 1e15 ? static_cast<int64_t>(rounded) : kNeverPays;
}

std::optional<BreakEven> MeasureBreakEven(ThreadPool* pool, const ModelConfig& config,
                                          DType kv_dtype, const std::string& arm,
                                          int64_t context_tokens) {
  const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm);
  WINNOW_CHECK(policy != nullptr);
  // A local layer reads its window, whatever the arm.
  int64_t sparse_layers = 0;
  for (int layer = policy->rule.dense_layers; layer < config.n_layers; ++layer) {
    sparse_layers += config.layers[layer].window == 0 ? 1 : 0;
  }
  const int64_t largest = std::min(context_tokens, kLargestDepth) / (4 * kSlots) * (4 * kSlots);
  if (sparse_layers == 0 || largest < kLeastContext) return BreakEven{};
  const SyntheticLayers layers(pool, config, kv_dtype, policy->planes(), largest, sparse_layers);
  Stopwatch stopwatch(pool, config, policy.get(), layers);
  BreakEven result;
  for (const int64_t depth : {largest / 4, largest / 2, largest}) {
    const std::optional<AttentionTime> time = stopwatch.Measure(depth);
    if (!time.has_value()) return std::nullopt;
    result.times.push_back(*time);
  }
  result.tokens = BreakEvenTokens(result.times);
  return result;
}

}  // namespace winnow
