#include "policy/prefill/chunk_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"

namespace winnow {
namespace {

// (3). `row` [T].
template <typename T>
void MeasureHead(const T* row, int64_t n_sinks, int64_t n_tokens, double z_min, int head,
                 ChunkScores& out) {
  double free_mass = 0;
  double squares = 0;
  for (int64_t j = n_sinks; j < n_tokens; ++j) {
    const double a = row[j];
    free_mass += a;
    squares += a * a;
  }
  out.free_mass[head] = free_mass;
  out.finite = out.finite && std::isfinite(squares);
  out.eligible[head] = free_mass >= z_min ? 1 : 0;
  if (out.eligible[head] == 0) return;
  out.collision[head] = squares / (free_mass * free_mass);
  out.entropy[head] = -std::log(out.collision[head]);
}

// (4) for heads [begin, end) of one group; says whether none is eligible.
bool WeighGroup(int begin, int end, double tau, double zeta, ChunkScores& out) {
  const double even = 1.0 / (end - begin);
  double max = -std::numeric_limits<double>::infinity();
  for (int h = begin; h < end; ++h) {
    if (out.eligible[h] != 0) max = std::max(max, -out.entropy[h] / tau);
  }
  const bool fallback = std::none_of(out.eligible.begin() + begin, out.eligible.begin() + end,
                                     [](uint8_t eligible) { return eligible != 0; });
  double sum = 0;
  for (int h = begin; h < end; ++h) {
    out.share[h] = fallback               ? even
                   : out.eligible[h] != 0 ? std::exp(-out.entropy[h] / tau - max)
                                          : 0;
    sum += out.share[h];
  }
  for (int h = begin; h < end; ++h) {
    out.share[h] /= sum;
    out.weight[h] = (1 - zeta) * out.share[h] + zeta * even;
  }
  return fallback;
}

void WeighHeads(const PruneProblem& problem, const ScoreParams& params,
                std::span<const double> head_weights, ChunkScores& out) {
  const int group = problem.query_heads / problem.kv_heads;
  out.all_fallback = true;
  double sum = 0;
  for (int g = 0; g < problem.kv_heads; ++g) {
    const int begin = g * group;
    const bool fallback = WeighGroup(begin, begin + group, params.tau, params.zeta, out);
    out.group_fallback[g] = fallback ? 1 : 0;
    for (int h = begin; h < begin + group; ++h) {
      out.pool_share[h] = out.weight[h] * (head_weights.empty() ? 1 : head_weights[h]);
      sum += out.pool_share[h];
      if (out.pool_share[h] > 0 && !fallback) out.all_fallback = false;
    }
  }
  WINNOW_CHECK(sum > 0, "no head has a weight");
  for (double& share : out.pool_share) share /= sum;
}

// (5), and whether all of it is finite.
template <typename T>
bool Pool(TensorView<const T, 2> mean_attention, ChunkScores& out) {
  const auto n_tokens = static_cast<size_t>(mean_attention.shape[1]);
  for (size_t h = 0; h < out.pool_share.size(); ++h) {
    const T* row = mean_attention.row(static_cast<int64_t>(h));
    const double share = out.pool_share[h];
    for (size_t j = 0; j < n_tokens; ++j) out.pooled[j] += share * static_cast<double>(row[j]);
  }
  return std::isfinite(std::accumulate(out.pooled.begin(), out.pooled.end(), 0.0));
}

// Z, p, M and π.
void ConditionOnDocuments(const PruneProblem& problem, double min_mass, ChunkScores& out) {
  const auto n_tokens = static_cast<size_t>(problem.n_tokens());
  for (size_t j = 0; j < n_tokens; ++j) {
    if (problem.chunk_of[j] >= 0) out.document_mass += out.pooled[j];
  }
  out.enough_mass = problem.n_chunks() > 0 && out.document_mass >= min_mass;
  if (!out.enough_mass) return;
  out.token_share.assign(n_tokens, 0);
  out.chunk_mass.assign(problem.chunk_tokens.size(), 0);
  for (size_t j = 0; j < n_tokens; ++j) {
    const int32_t chunk = problem.chunk_of[j];
    if (chunk < 0) continue;
    out.token_share[j] = out.pooled[j] / out.document_mass;
    out.chunk_mass[chunk] += out.token_share[j];
  }
  const auto n_documents = static_cast<double>(problem.n_candidate_tokens());
  for (const int64_t tokens : problem.chunk_tokens) {
    out.null_mass.push_back(static_cast<double>(tokens) / n_documents);
  }
}

// (8) and (9).
void ScoreByRatio(const PruneProblem& problem, const ScoreParams& params, ChunkScores& out) {
  const size_t n_chunks = problem.chunk_tokens.size();
  const double eps = params.eps_s;
  out.smoothed.assign(out.token_share.size(), 0);
  std::vector<double> squares(n_chunks, 0);
  for (size_t j = 0; j < out.token_share.size(); ++j) {
    const int32_t i = problem.chunk_of[j];
    if (i < 0) continue;
    const double spread = eps * out.null_mass[i];
    out.smoothed[j] = (out.token_share[j] + spread / static_cast<double>(problem.chunk_tokens[i])) /
                      (out.chunk_mass[i] + spread);
    squares[i] += out.smoothed[j] * out.smoothed[j];
  }
  for (size_t i = 0; i < n_chunks; ++i) {
    const double null_mass = out.null_mass[i];
    out.ratio.push_back((out.chunk_mass[i] + eps * null_mass) / ((1 + eps) * null_mass));
    const auto n = static_cast<double>(problem.chunk_tokens[i]);
    // In exact arithmetic it is within [0, 1].
    out.concentration.push_back(n > 1 ? std::clamp((n * squares[i] - 1) / (n - 1), 0.0, 1.0) : 0);
    out.score.push_back(std::log(out.ratio[i]) + params.lambda * out.concentration[i]);
  }
}

}  // namespace

template <typename T>
ChunkScores ScoreChunks(const PruneProblem& problem, TensorView<const T, 2> mean_attention,
                        const ScoreParams& params, std::span<const double> head_weights) {
  const auto heads = static_cast<size_t>(problem.query_heads);
  WINNOW_CHECK(mean_attention.shape[0] == problem.query_heads &&
                   mean_attention.shape[1] == problem.n_tokens(),
               "attention [{}, {}] of {} heads and {} tokens", mean_attention.shape[0],
               mean_attention.shape[1], heads, problem.n_tokens());
  WINNOW_CHECK(head_weights.empty() || head_weights.size() == heads, "{} head weights",
               head_weights.size());
  ChunkScores out;
  out.free_mass.assign(heads, 0);
  out.eligible.assign(heads, 0);
  out.collision.assign(heads, std::numeric_limits<double>::quiet_NaN());
  out.entropy = out.collision;
  out.share.assign(heads, 0);
  out.weight.assign(heads, 0);
  out.pool_share.assign(heads, 0);
  out.group_fallback.assign(problem.kv_heads, 0);
  out.pooled.assign(problem.n_tokens(), 0);
  for (int h = 0; h < problem.query_heads; ++h) {
    MeasureHead(mean_attention.row(h), problem.n_sinks, problem.n_tokens(), params.z_min, h, out);
  }
  if (!out.finite) return out;
  WeighHeads(problem, params, head_weights, out);
  out.finite = Pool(mean_attention, out);
  if (!out.finite) return out;
  ConditionOnDocuments(problem, params.min_mass, out);
  if (out.enough_mass) ScoreByRatio(problem, params, out);
  return out;
}

template ChunkScores ScoreChunks(const PruneProblem&, TensorView<const float, 2>,
                                 const ScoreParams&, std::span<const double>);
template ChunkScores ScoreChunks(const PruneProblem&, TensorView<const double, 2>,
                                 const ScoreParams&, std::span<const double>);

}  // namespace winnow
