// Lanes are rows (an observer of a query head), as in prefill_attention_cpu.cc: a chunk's mass is a
// sum of vectors over its tokens; only the mean over observers needs sums over lanes, one a token
// and head.
#include "ops/observer_rows_cpu.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "core/check.h"
#include "ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/observer_rows_cpu.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "ops/query_panels-inl.h"

#ifndef WINNOW_OPS_OBSERVER_ROWS_CPU_ONCE_
#define WINNOW_OPS_OBSERVER_ROWS_CPU_ONCE_
namespace winnow {
namespace observer {

inline constexpr int64_t kTileTokens = 128;
inline constexpr int64_t kMaxBlockRows = 8;
inline constexpr int64_t kMaxPanelRows = 48;
static_assert(kObserverBlockTokens % kTileTokens == 0);

struct Scratch {
  Scratch(float* base, int64_t head_dim)
      : stride((head_dim + kObserverRowUnit - 1) / kObserverRowUnit * kObserverRowUnit) {
    const auto take = [&](int64_t n) {
      float* const p = base == nullptr ? nullptr : base + floats;
      floats += n;
      return p;
    };
    keys = take((kTileTokens + kMaxBlockRows) * stride);
    scores = take((kTileTokens + kMaxBlockRows) * kMaxPanelRows);
    means = take(kTileTokens * kObserverRowUnit);
  }

  int64_t stride;      // floats between keys
  int64_t floats = 0;  // of all of it
  float* keys;         // [tokens of the tile][stride]
  float* scores;       // [tokens of the tile][width]
  float* means;        // [tokens of the tile][lanes]: what a head's vectors add to the mean
};

}  // namespace observer
}  // namespace winnow
#endif  // WINNOW_OPS_OBSERVER_ROWS_CPU_ONCE_

HWY_BEFORE_NAMESPACE();
namespace winnow {
namespace HWY_NAMESPACE {
namespace {

using observer::kTileTokens;
using observer::Scratch;

static_assert(observer::kMaxPanelRows % (kPanelVectors * kLanes) == 0 &&
              observer::kMaxBlockRows % kBlockRows == 0 && kObserverRowUnit % kLanes == 0);

// Rows of one query head that are computed together.
struct Panel {
  int64_t first_row = 0;
  int vectors = 0;
};

// The vectors of a head's rows in panels of about equal width.
class Panels {
 public:
  explicit Panels(int64_t n_rows)
      : vectors_((n_rows + kLanes - 1) / kLanes),
        size_((vectors_ + kPanelVectors - 1) / kPanelVectors) {}
  int64_t size() const { return size_; }
  Panel operator[](int64_t i) const {
    const int64_t first = i * vectors_ / size_;
    return {.first_row = first * static_cast<int64_t>(kLanes),
            .vectors = static_cast<int>((i + 1) * vectors_ / size_ - first)};
  }

 private:
  int64_t vectors_;
  int64_t size_;
};

void Pack(const ObserverState& state, int64_t head) {
  const auto [n_observers, query_heads, head_dim] = state.params->q.shape;
  const float scale = state.params->scale * std::numbers::log2e_v<float>;
  const Panels panels(n_observers);
  for (int64_t p = 0; p < panels.size(); ++p) {
    const Panel panel = panels[p];
    const int64_t width = panel.vectors * static_cast<int64_t>(kLanes);
    float* const to = state.q + (head * state.padded + panel.first_row) * head_dim;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t u = std::min(panel.first_row + i, n_observers - 1);
      const float* const from = state.params->q.data + (u * query_heads + head) * head_dim;
      for (int64_t d = 0; d < head_dim; ++d) to[d * width + i] = from[d] * scale;
    }
  }
}

// One KV head of one block: tiles of converted keys, and the scores of all its rows.
class Block {
 public:
  Block(const ObserverState& state, int head, int64_t block, std::span<float> scratch)
      : state_(state),
        params_(*state.params),
        head_(head),
        block_(block),
        n_observers_(params_.q.shape[0]),
        head_dim_(params_.q.shape[2]),
        all_begin_(params_.begin[n_observers_ - 1]),
        all_end_(params_.end[0]),
        s_(scratch.data(), head_dim_) {}

  void Sum() {
    const int64_t rows = state_.group() * state_.padded;
    std::fill_n(state_.block_max + BlockRow(0), rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state_.block_sum + BlockRow(0), rows, 0.0f);
    ForEachTile([&](int64_t token, int64_t n) {
      for (int64_t r = 0; r < state_.group(); ++r) {
        ForEachPanel([&]<int kVectors>(const Panel& panel) {
          const PanelRows rows = Score<kVectors>(r, panel, token, n);
          VF32 factor[kVectors];
          RunningSoftmax<kVectors>(rows, n, s_.scores, factor);
        });
      }
    });
  }

  void Read() {
    const int64_t n_tokens = params_.kv.n_tokens;
    const int64_t begin = block_ * kObserverBlockTokens;
    const int64_t end = std::min(begin + kObserverBlockTokens, n_tokens);
    std::fill_n(state_.block_heads + BlockRow(0), state_.group() * state_.padded, 0.0);
    for (int64_t r = 0; r < state_.group(); ++r) {
      float* const mean = state_.out.mean_attention.row(QueryHead(r));
      std::fill(mean + begin, mean + end, 0.0f);
    }
    ForEachTile([&](int64_t token, int64_t n) {
      for (int64_t r = 0; r < state_.group(); ++r) {
        std::fill_n(s_.means, kTileTokens * static_cast<int64_t>(kLanes), 0.0f);
        ForEachPanel([&]<int kVectors>(const Panel& panel) {
          Score<kVectors>(r, panel, token, n);
          Weigh<kVectors>(r, panel, token, n);
        });
        StoreMeans(state_.out.mean_attention.row(QueryHead(r)) + token, n);
      }
    });
  }

 private:
  int64_t QueryHead(int64_t r) const { return head_ * state_.group() + r; }
  // First row of query head r of the group, in arrays [H, P] and [blocks, H, P].
  int64_t HeadRow(int64_t r) const { return QueryHead(r) * state_.padded; }
  int64_t BlockRow(int64_t r) const {
    return block_ * params_.q.shape[1] * state_.padded + HeadRow(r);
  }

  // Calls fn(first token, tokens) with the keys of each tile converted.
  template <class Fn>
  void ForEachTile(Fn fn) {
    const int64_t begin = block_ * kObserverBlockTokens;
    const int64_t end = std::min(begin + kObserverBlockTokens, params_.end[n_observers_ - 1]);
    for (int64_t tile = begin; tile < end; tile += kTileTokens) {
      const int64_t first = std::max(tile, params_.begin[0]);
      const int64_t last = std::min(tile + kTileTokens, end);
      if (first >= last) continue;
      ConvertTokens(params_.kv, head_, true, first, last, s_.stride, s_.keys);
      fn(first, last - first);
    }
  }

  template <class Fn>
  HWY_INLINE void ForEachPanel(Fn fn) {
    const Panels panels(n_observers_);
    for (int64_t p = 0; p < panels.size(); ++p) {
      const Panel panel = panels[p];
      if (panel.vectors == 1) fn.template operator()<1>(panel);
      if (panel.vectors == 2) fn.template operator()<2>(panel);
      if (panel.vectors == 3) fn.template operator()<3>(panel);
    }
  }

  // Scores of the tile's tokens, -inf where a row does not see one.
  template <int kVectors>
  PanelRows Score(int64_t r, const Panel& panel, int64_t token, int64_t n) {
    const float* const q = state_.q + (HeadRow(r) + panel.first_row) * head_dim_;
    ScoreKeys<kVectors>(s_.keys, s_.stride, n, q, head_dim_, s_.scores);
    const PanelRows rows = {.begin = state_.begin + panel.first_row,
                            .end = state_.end + panel.first_row,
                            .max = state_.block_max + BlockRow(r) + panel.first_row,
                            .sum = state_.block_sum + BlockRow(r) + panel.first_row};
    MaskScores<kVectors>(rows, token, 0, std::min(n, all_begin_ - token), s_.scores);
    MaskScores<kVectors>(rows, token, std::max<int64_t>(0, all_end_ - token), n, s_.scores);
    return rows;
  }

  // Adds the weights of the tile's tokens to their chunks and to the mean.
  template <int kVectors>
  HWY_INLINE void Weigh(int64_t r, const Panel& panel, int64_t token, int64_t n) {
    const F32 f32;
    VF32 max[kVectors];
    VF32 factor[kVectors];
    VF32 mean_weight[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t row = panel.first_row + v * static_cast<int64_t>(kLanes);
      max[v] = hn::Load(f32, state_.max + HeadRow(r) + row);
      factor[v] = hn::Load(f32, state_.factor + HeadRow(r) + row);
      mean_weight[v] = hn::Load(f32, state_.mean_weight + row);
    }
    const int32_t* const chunks = params_.chunk_of.data() + token;
    const float* score = s_.scores;
    for (int64_t i = 0; i < n;) {
      const int32_t chunk = chunks[i];
      VF32 sum[kVectors];
      for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(f32);
      for (; i < n && chunks[i] == chunk; ++i) {
        float* const at = s_.means + i * static_cast<int64_t>(kLanes);
        VF32 mean = hn::Load(f32, at);
        for (int v = 0; v < kVectors; ++v, score += kLanes) {
          const VF32 power = FastExp2(f32, hn::Sub(hn::Load(f32, score), max[v]));
          const VF32 weight = hn::Mul(power, factor[v]);
          sum[v] = hn::Add(sum[v], weight);
          mean = hn::MulAdd(weight, mean_weight[v], mean);
        }
        hn::Store(mean, f32, at);
      }
      if (chunk >= 0) AddToChunk<kVectors>(r, panel, chunk, sum);
    }
  }

  template <int kVectors>
  HWY_INLINE void AddToChunk(int64_t r, const Panel& panel, int32_t chunk, const VF32* sum) {
    HWY_ALIGN float sums[kVectors * kLanes];
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[v], F32(), sums + v * kLanes);
    const int64_t first = panel.first_row;
    const int64_t n =
        std::min(kVectors * static_cast<int64_t>(kLanes), n_observers_ - panel.first_row);
    // A chunk that began in an earlier block is not this task's to write.
    const bool own = chunk != state_.chunk_before[block_];
    double* const to = own ? state_.out.chunk_mass.row(QueryHead(r) * n_observers_ + first) + chunk
                           : state_.block_heads + BlockRow(r) + first;
    const int64_t stride = own ? params_.n_chunks : 1;
    for (int64_t i = 0; i < n; ++i) to[i * stride] += static_cast<double>(sums[i]);
  }

  void StoreMeans(float* to, int64_t n) {
    const F32 f32;
    const auto load = [&](int64_t i) { return hn::Load(f32, s_.means + i * kLanes); };
    for (int64_t i = 0; i < n; i += 4) {
      float sums[4];
      StoreSums4(f32, load(i), load(i + 1), load(i + 2), load(i + 3), sums);
      std::copy_n(sums, std::min<int64_t>(4, n - i), to + i);
    }
  }

  const ObserverState& state_;
  const ObserverRowsParams& params_;
  const int head_;
  const int64_t block_;
  const int64_t n_observers_;
  const int64_t head_dim_;
  const int64_t all_begin_;  // every observer sees [all_begin, all_end)
  const int64_t all_end_;
  Scratch s_;
};

void SumBlock(const ObserverState& state, int head, int64_t block, std::span<float> scratch) {
  Block(state, head, block, scratch).Sum();
}

void ReadBlock(const ObserverState& state, int head, int64_t block, std::span<float> scratch) {
  Block(state, head, block, scratch).Read();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace winnow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow {

HWY_EXPORT(Pack);
HWY_EXPORT(SumBlock);
HWY_EXPORT(ReadBlock);

int64_t ObserverScratchFloats(int64_t head_dim) {
  return observer::Scratch(nullptr, head_dim).floats;
}

void PackObservers(const ObserverState& state, int64_t head) {
  HWY_DYNAMIC_DISPATCH(Pack)(state, head);
}

void SumObserverBlock(const ObserverState& state, int head, int64_t block,
                      std::span<float> scratch) {
  HWY_DYNAMIC_DISPATCH(SumBlock)(state, head, block, scratch);
}

void ReadObserverBlock(const ObserverState& state, int head, int64_t block,
                       std::span<float> scratch) {
  HWY_DYNAMIC_DISPATCH(ReadBlock)(state, head, block, scratch);
}

}  // namespace winnow
#endif  // HWY_ONCE
