#include "ops/observer_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "ops/observer_rows_cpu.h"
#include "ops/prefill_attention.h"
#include "ops/token_rows.h"

namespace winnow {
namespace {

void CheckParams(const ObserverRowsParams& params) {
  WINNOW_CHECK(params.kv.layout != nullptr);
  const PageLayout& layout = *params.kv.layout;
  const auto [n_observers, query_heads, head_dim] = params.q.shape;
  const int64_t n_tokens = params.kv.n_tokens;
  WINNOW_CHECK(n_observers > 0 && head_dim == layout.head_dim && query_heads > 0 &&
                   query_heads % layout.kv_heads == 0,
               "queries [{}, {}, {}], {} KV heads of {}", n_observers, query_heads, head_dim,
               layout.kv_heads, layout.head_dim);
  WINNOW_CHECK(n_tokens <= kMaxAttentionTokens &&
               std::ssize(params.kv.pages) * layout.slots >= n_tokens);
  WINNOW_CHECK(std::ssize(params.begin) == n_observers && std::ssize(params.end) == n_observers);
  for (int64_t u = 0; u < n_observers; ++u) {
    WINNOW_CHECK(
        0 <= params.begin[u] && params.begin[u] <= params.end[u] && params.end[u] <= n_tokens &&
            (u == 0 ||
             (params.begin[u - 1] <= params.begin[u] && params.end[u - 1] <= params.end[u])),
        "observer {}: [{}, {}) of {}", u, params.begin[u], params.end[u], n_tokens);
  }
  WINNOW_CHECK(std::ssize(params.chunk_of) == n_tokens);
  WINNOW_CHECK(0 <= params.first_proposal && params.first_proposal < n_observers);
  WINNOW_CHECK(params.log_mass.data == nullptr ||
               (params.log_mass.shape == std::array{n_observers, query_heads}));
}

// [blocks]: the last chunk that began before each block, or -1. CHECKs the order of chunks.
std::vector<int32_t> ChunksBefore(const ObserverRowsParams& params) {
  std::vector<int32_t> before;
  int32_t last = -1;
  for (int64_t t = 0; t < params.kv.n_tokens; ++t) {
    if (t % kObserverBlockTokens == 0) before.push_back(last);
    const int32_t chunk = params.chunk_of[t];
    if (chunk < 0) continue;
    WINNOW_CHECK(chunk >= last && chunk < params.n_chunks, "chunk {} after {} of {}", chunk, last,
                 params.n_chunks);
    last = chunk;
  }
  return before;
}

ObserverState MakeState(const ObserverRowsParams& params, const ObserverRows& out,
                        std::span<const int32_t> chunk_before, ObserverRowsWorkspace& workspace) {
  const auto [n_observers, query_heads, head_dim] = params.q.shape;
  ObserverState state{.params = &params, .out = out, .chunk_before = chunk_before.data()};
  const int64_t padded = (n_observers + kObserverRowUnit - 1) / kObserverRowUnit * kObserverRowUnit;
  const int64_t rows = query_heads * padded;
  const auto block_rows = std::ssize(chunk_before) * rows;
  workspace.rows.Resize(rows * head_dim + 2 * rows + 3 * padded);
  workspace.block_sums.Resize(2 * block_rows);
  workspace.block_heads.Resize(block_rows);
  state.padded = padded;
  state.q = workspace.rows.data();
  state.max = state.q + rows * head_dim;
  state.factor = state.max + rows;
  state.begin = state.factor + rows;
  state.end = state.begin + padded;
  state.mean_weight = state.end + padded;
  state.block_max = workspace.block_sums.data();
  state.block_sum = state.block_max + block_rows;
  state.block_heads = workspace.block_heads.data();
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t u = std::min(i, n_observers - 1);
    state.begin[i] = static_cast<float>(params.begin[u]);
    state.end[i] = static_cast<float>(params.end[u]);
    const bool counts = params.first_proposal <= i && i < n_observers;
    state.mean_weight[i] =
        counts ? 1.0f / static_cast<float>(n_observers - params.first_proposal) : 0.0f;
  }
  return state;
}

// A row's maximum and sum over its blocks, in their order.
void MergeBlocks(const ObserverState& state, int64_t n_blocks, int64_t head) {
  const int64_t rows = state.params->q.shape[1] * state.padded;
  for (int64_t row = head * state.padded; row < (head + 1) * state.padded; ++row) {
    float max = -std::numeric_limits<float>::infinity();
    for (int64_t b = 0; b < n_blocks; ++b) {
      max = std::max(max, state.block_max[b * rows + row]);
    }
    if (max == -std::numeric_limits<float>::infinity()) max = 0;
    double sum = 0;
    for (int64_t b = 0; b < n_blocks; ++b) {
      sum += static_cast<double>(state.block_sum[b * rows + row]) *
             std::exp2(static_cast<double>(state.block_max[b * rows + row]) - max);
    }
    state.max[row] = max;
    state.factor[row] = sum == 0 ? 0.0f : static_cast<float>(1 / sum);
  }
}

// The same from the log of the sum that the main pass took.
void TakeLogMass(const ObserverState& state, int64_t head) {
  const int64_t n_observers = state.params->q.shape[0];
  for (int64_t i = 0; i < state.padded; ++i) {
    const float log_mass = state.params->log_mass.row(std::min(i, n_observers - 1))[head];
    const double log2_mass = static_cast<double>(log_mass) * std::numbers::log2e;
    const double max = std::isfinite(log2_mass) ? std::ceil(log2_mass) : 0;
    const double factor = log_mass == std::numeric_limits<float>::infinity()
                              ? std::numeric_limits<double>::quiet_NaN()
                              : std::exp2(max - log2_mass);
    // A row that sees nothing has a log of -inf.
    const bool empty = log_mass == -std::numeric_limits<float>::infinity();
    state.max[head * state.padded + i] = static_cast<float>(max);
    state.factor[head * state.padded + i] = empty ? 0.0f : static_cast<float>(factor);
  }
}

// Adds what the blocks hold of chunks that began before them.
void AddBlockHeads(const ObserverState& state, std::span<const int32_t> chunk_before,
                   int64_t head) {
  const auto [n_observers, query_heads, head_dim] = state.params->q.shape;
  const int64_t rows = query_heads * state.padded;
  for (size_t b = 0; b < chunk_before.size(); ++b) {
    if (chunk_before[b] < 0) continue;
    const double* const from =
        state.block_heads + static_cast<int64_t>(b) * rows + head * state.padded;
    for (int64_t u = 0; u < n_observers; ++u) {
      state.out.chunk_mass.row(head * n_observers + u)[chunk_before[b]] += from[u];
    }
  }
}

}  // namespace

bool ReadObserverRows(ThreadPool& pool, const ObserverRowsParams& params, const ObserverRows& out,
                      ObserverRowsWorkspace& workspace) {
  CheckParams(params);
  const auto [n_observers, query_heads, head_dim] = params.q.shape;
  WINNOW_CHECK((out.mean_attention.shape == std::array{query_heads, params.kv.n_tokens}) &&
               (out.chunk_mass.shape == std::array{query_heads * n_observers, params.n_chunks}));
  const std::vector<int32_t> chunk_before = ChunksBefore(params);
  const ObserverState state = MakeState(params, out, chunk_before, workspace);
  const auto n_blocks = std::ssize(chunk_before);
  const int kv_heads = params.kv.layout->kv_heads;
  const int64_t scratch_floats = ObserverScratchFloats(head_dim);
  workspace.scratch.Resize(pool.size() * scratch_floats);
  const auto scratch = [&](int thread) {
    return workspace.scratch.span().subspan(thread * scratch_floats, scratch_floats);
  };

  // What is done a row alone is under 2% of the work: on one thread it saves three barriers.
  std::ranges::fill(out.chunk_mass.span(), 0.0);
  for (int64_t head = 0; head < query_heads; ++head) PackObservers(state, head);
  const bool have_sums = params.log_mass.data != nullptr;
  if (!have_sums) {
    pool.ForEach(n_blocks * kv_heads, [&](int64_t task, int thread) {
      SumObserverBlock(state, static_cast<int>(task % kv_heads), task / kv_heads, scratch(thread));
    });
  }
  for (int64_t head = 0; head < query_heads; ++head) {
    have_sums ? TakeLogMass(state, head) : MergeBlocks(state, n_blocks, head);
  }
  pool.ForEach(n_blocks * kv_heads, [&](int64_t task, int thread) {
    ReadObserverBlock(state, static_cast<int>(task % kv_heads), task / kv_heads, scratch(thread));
  });
  for (int64_t head = 0; head < query_heads; ++head) AddBlockHeads(state, chunk_before, head);
  return std::all_of(state.factor, state.factor + query_heads * state.padded,
                     [](float factor) { return std::isfinite(factor); });
}

namespace {

// One observer's rows of one KV head, R query heads.
class RemovalRows {
 public:
  RemovalRows(const ObserverRowsParams& params, std::span<const uint8_t> removed, int head,
              int64_t observer, float* scratch)
      : params_(params),
        removed_(removed),
        rows_{.kv = &params.kv,
              .head = head,
              .group_heads = static_cast<int>(params.q.shape[1] / params.kv.layout->kv_heads)},
        observer_(observer),
        stride_(params.kv.n_tokens),
        scores_(scratch),
        weights_(scratch + rows_.group_heads * stride_) {}

  void Measure(const ObserverOutputs& out) {
    const int64_t dim = params_.q.shape[2];
    const int64_t first_head = static_cast<int64_t>(rows_.head) * rows_.group_heads;
    std::vector<float> q(rows_.group_heads * dim);
    const float* const from = params_.q.row(observer_) + first_head * dim;
    std::transform(from, from + q.size(), q.begin(), [&](float x) { return x * params_.scale; });
    ScoreTokens(rows_, q.data(), scores_, stride_);
    const Part kept = Sum(false);
    const Part dropped = Sum(true);
    for (int r = 0; r < rows_.group_heads; ++r) {
      const double total = kept.mass[r] + dropped.mass[r];
      double norm = 0;
      double change = 0;
      for (int64_t d = r * dim; d < (r + 1) * dim; ++d) {
        const double o = total == 0 ? 0.0 : (kept.sum[d] + dropped.sum[d]) / total;
        // o − o_R is the dropped share of the difference between both parts' means: nothing
        // cancels where the share is small.
        const double o_r = kept.mass[r] == 0 ? 0.0 : kept.sum[d] / kept.mass[r];
        const double difference =
            dropped.mass[r] == 0
                ? 0.0
                : dropped.mass[r] / total * (dropped.sum[d] / dropped.mass[r] - o_r);
        norm += o * o;
        change += difference * difference;
      }
      out.norm.row(first_head + r)[observer_] = std::sqrt(norm);
      out.change.row(first_head + r)[observer_] = std::sqrt(change);
    }
  }

 private:
  struct Part {
    std::vector<double> mass;  // [R], of e^(score − maximum of all visible)
    std::vector<float> sum;    // [R, D], of that times the values
  };

  Part Sum(bool of_removed) {
    Part part{.mass = std::vector<double>(rows_.group_heads),
              .sum = std::vector<float>(rows_.group_heads * params_.q.shape[2])};
    const int64_t begin = params_.begin[observer_];
    const int64_t end = params_.end[observer_];
    for (int r = 0; r < rows_.group_heads; ++r) {
      const float* const score = scores_ + r * stride_;
      float* const weight = weights_ + r * stride_;
      const float max = begin == end ? 0 : *std::max_element(score + begin, score + end);
      std::fill_n(weight, stride_, 0.0f);
      for (int64_t t = begin; t < end; ++t) {
        const int32_t chunk = params_.chunk_of[t];
        if ((chunk >= 0 && removed_[chunk] != 0) != of_removed) continue;
        weight[t] = std::exp(score[t] - max);
        part.mass[r] += weight[t];
      }
    }
    AddWeightedTokens(rows_, weights_, stride_, part.sum.data());
    return part;
  }

  const ObserverRowsParams& params_;
  std::span<const uint8_t> removed_;
  TokenRows rows_;
  int64_t observer_;
  int64_t stride_;
  float* scores_;   // [R, T]
  float* weights_;  // [R, T]
};

}  // namespace

void MeasureRemoval(ThreadPool& pool, const ObserverRowsParams& params,
                    std::span<const uint8_t> removed, const ObserverOutputs& out) {
  CheckParams(params);
  const auto [n_observers, query_heads, head_dim] = params.q.shape;
  WINNOW_CHECK(std::ssize(removed) == params.n_chunks);
  WINNOW_CHECK((out.norm.shape == std::array{query_heads, n_observers}) &&
               out.change.shape == out.norm.shape);
  ChunksBefore(params);
  const int kv_heads = params.kv.layout->kv_heads;
  const int64_t scratch_floats = 2 * query_heads / kv_heads * params.kv.n_tokens;
  AlignedBuffer<float> scratch(pool.size() * scratch_floats);
  pool.ForEach(n_observers * kv_heads, [&](int64_t task, int thread) {
    RemovalRows(params, removed, static_cast<int>(task % kv_heads), task / kv_heads,
                scratch.data() + thread * scratch_floats)
        .Measure(out);
  });
}

}  // namespace winnow
