#include "attention/candidate_read.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/kv_store_cpu.h"
#include "ops/summary_scan.h"
#include "ops/token_rows.h"
#include "policy/select/routing.h"
#include "policy/solver/gaps.h"

namespace winnow {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Of `count` routed tokens, how many candidates there are.
int64_t CandidatesOf(const DecodePolicy& policy, const CandidateQuery& query, int64_t count) {
  if (!query.tokens.empty()) return std::ssize(query.tokens);
  const int64_t limit = policy.selector->candidate_tokens();
  return limit > 0 ? std::min(limit, count) : count;
}

int64_t RoutedTokens(const CandidateQuery& query) {
  return (query.routed_end - query.routed_begin) * query.read.kv.layout->slots;
}

}  // namespace

class CandidateRead::Task {
 public:
  Task(const DecodePolicy& policy, const CandidateQuery& query, const DecodeAttentionParams& params,
       Scratch& scratch)
      : policy_(policy),
        query_(query),
        scale_(params.scale),
        s_(scratch),
        kv_(query.read.kv),
        layout_(*kv_.layout),
        group_(params.query_heads / layout_.kv_heads),
        n_(kv_.n_tokens),
        rows_{&kv_, query.read.first_head, group_} {}

  void Run() {
    s_.q.resize(static_cast<size_t>(group_) * layout_.head_dim);
    ScaleQueryRows(query_.read.q, group_, layout_.head_dim, layout_.head_dim, scale_, s_.q.data());
    s_.scores.resize(group_ * n_);
    s_.weights.resize(group_ * n_);
    s_.ones.assign(group_ * n_, 1.0f);
    s_.pooled.resize(n_);
    s_.log_totals.resize(group_);
    ScoreTokens(rows_, s_.q.data(), s_.scores.data(), n_);
    ChooseCandidates();
    query_.outcome->tokens_read = std::ssize(s_.tokens);
    query_.outcome->bytes_read = layout_.HeadBytes(n_) / 2;  // keys
    std::fill_n(query_.read.out, s_.q.size(), 0.0f);
    if (policy_.solver.projects()) {
      Project();
    } else {
      Softmax();
    }
    const int64_t n_values = AddWeightedTokens(rows_, s_.weights.data(), n_, query_.read.out);
    query_.outcome->bytes_read += n_values * static_cast<int64_t>(layout_.row_bytes);
  }

 private:
  // The shares of tokens [begin, begin + n) among themselves, by query head and pooled.
  void Shares(int64_t begin, int64_t n) {
    PageShares({.n_pages = n, .stride = n_, .max = s_.scores.data() + begin, .sum = s_.ones.data()},
               group_, s_.weights.data(), s_.pooled.data(), s_.log_totals.data());
  }

  void ChooseCandidates() {
    const int64_t begin = query_.routed_begin * layout_.slots;
    const int64_t count = RoutedTokens(query_);
    const int64_t n_chosen = CandidatesOf(policy_, query_, count);
    s_.candidate.assign(n_, true);
    if (n_chosen < count) {
      std::fill_n(s_.candidate.begin() + begin, count, false);
      if (!query_.tokens.empty()) {
        for (int32_t token : query_.tokens) s_.candidate[begin + token] = true;
      } else {
        // One choice serves the group: by the sum of the heads' shares, as pages are.
        Shares(begin, count);
        const std::span<const float> pooled = std::span(s_.pooled).first(count);
        for (int64_t i : TopFloatIndices(pooled, n_chosen)) s_.candidate[begin + i] = true;
      }
    }
    s_.tokens.clear();
    for (int64_t t = 0; t < n_; ++t) {
      if (s_.candidate[t]) s_.tokens.push_back(t);
    }
  }

  void Softmax() {
    query_.outcome->left_out.assign(group_, {});
    Shares(0, n_);
    if (std::ssize(s_.tokens) < n_) {
      if (policy_.drop_left_out) {
        DropLeftOut();
      } else {
        StandForLeftOut();
      }
    }
    std::copy(s_.log_totals.begin(), s_.log_totals.end(), query_.read.log_mass);
  }

  // As if only the candidates were there. Their shares are taken anew: next to a large one that is
  // left out they may all have vanished.
  void DropLeftOut() {
    const std::vector<float> log_all = s_.log_totals;
    for (int64_t t = 0; t < n_; ++t) {
      if (s_.candidate[t]) continue;
      for (int r = 0; r < group_; ++r) s_.scores[r * n_ + t] = kNoScore;
    }
    Shares(0, n_);
    for (int r = 0; r < group_; ++r) {
      const double above = static_cast<double>(log_all[r]) - s_.log_totals[r];
      query_.outcome->left_out[r].dropped = std::max(0.0, std::expm1(above));
    }
  }

  // Exact mass, since the keys were read; the page's mean value.
  void StandForLeftOut() {
    std::vector<float>& weights = s_.weights;
    for (int64_t page = query_.routed_begin; page < query_.routed_end; ++page) {
      const auto* mean =
          reinterpret_cast<const float*>(kv_.PlaneOf(Plane::kValueMean, page, rows_.head));
      bool any = false;
      for (int r = 0; r < group_; ++r) {
        float of_page = 0;
        for (int64_t t = page * layout_.slots; t < (page + 1) * layout_.slots; ++t) {
          if (s_.candidate[t]) continue;
          of_page += weights[r * n_ + t];
          weights[r * n_ + t] = 0;
        }
        any = any || of_page != 0;
        query_.outcome->left_out[r].estimated += of_page;
        float* out = query_.read.out + static_cast<int64_t>(r) * layout_.head_dim;
        for (int c = 0; c < layout_.head_dim; ++c) out[c] += of_page * mean[c];
      }
      if (any) {
        query_.outcome->bytes_read += layout_.padded_dim * static_cast<int64_t>(sizeof(float));
      }
    }
  }

  // Rows of the candidates [M, D].
  void Gather(bool keys) {
    const auto dim = static_cast<size_t>(layout_.head_dim);
    s_.row.resize(dim);
    s_.atoms.resize(s_.tokens.size() * dim);
    double* to = s_.atoms.data();
    for (int64_t t : s_.tokens) {
      const int64_t page = t / layout_.slots;
      const std::byte* rows = keys ? kv_.Keys(page, rows_.head) : kv_.Values(page, rows_.head);
      LoadRowCpu(layout_.dtype, rows + static_cast<size_t>(t % layout_.slots) * layout_.row_bytes,
                 layout_.head_dim, s_.row.data());
      to = std::copy(s_.row.begin(), s_.row.end(), to);
    }
  }

  void Project() {
    ScopedTimer timer(s_.solve_seconds);
    const std::array<int64_t, 2> shape{std::ssize(s_.tokens), layout_.head_dim};
    double value_radius = 0;
    if (policy_.solver.kind == SolverKind::kEntropic) {
      Gather(false);
      value_radius = MeanRadius({s_.atoms.data(), shape});
    }
    Gather(true);
    s_.solution.resize(s_.tokens.size());
    std::fill(s_.weights.begin(), s_.weights.end(), 0.0f);
    std::fill_n(query_.read.log_mass, group_, 0.0f);
    for (int r = 0; r < group_; ++r) {
      const float* q = query_.read.q + static_cast<int64_t>(r) * layout_.head_dim;
      s_.query.assign(q, q + layout_.head_dim);
      const CandidateSolution solution = SolveCandidates({{s_.atoms.data(), shape}, s_.query},
                                                         policy_.solver, s_.solver, s_.solution);
      for (size_t j = 0; j < s_.tokens.size(); ++j) {
        s_.weights[r * n_ + s_.tokens[j]] = static_cast<float>(s_.solution[j]);
      }
      Record(solution, value_radius);
    }
  }

  void Record(const CandidateSolution& solution, double value_radius) {
    const SolverResult& result = solution.result;
    SolverAccount account{.problems = 1,
                          .candidates = std::ssize(s_.tokens),
                          .iterations = result.iterations,
                          .iterations_max = result.iterations,
                          .converged = result.status == SolverStatus::kConverged ? 1 : 0,
                          .not_finite = result.status == SolverStatus::kNotFinite ? 1 : 0};
    if (account.not_finite == 0) {
      account.gap_max = result.gap;
      account.distance_max = result.distance_bound;
      account.eps_min = account.eps_max = solution.eps;
      if (solution.eps > 0) {
        account.value_distance_max = EntropicValueBound(result.gap, solution.eps, value_radius);
      }
    }
    query_.outcome->solver += account;
  }

  const DecodePolicy& policy_;
  const CandidateQuery& query_;
  float scale_;
  Scratch& s_;
  const PagedKv& kv_;
  const PageLayout& layout_;
  int group_;
  int64_t n_;
  TokenRows rows_;
};

void CandidateRead::Read(const DecodePolicy& policy, std::span<const CandidateQuery> queries,
                         const DecodeAttentionParams& params, StageSeconds* seconds) {
  plain_.clear();
  others_.clear();
  for (const CandidateQuery& query : queries) {
    const int64_t routed = RoutedTokens(query);
    const int64_t n_tokens = query.read.kv.n_tokens;
    *query.outcome = {.tokens_read = n_tokens,
                      .bytes_read = query.read.kv.layout->HeadBytes(n_tokens)};
    if (policy.solver.projects() || CandidatesOf(policy, query, routed) < routed) {
      others_.push_back(&query);
    } else {
      plain_.push_back(query.read);
    }
  }
  if (!plain_.empty()) DecodeAttention(*pool_, plain_, params, workspace_, nullptr);
  scratch_.resize(pool_->size());
  for (Scratch& scratch : scratch_) scratch.solve_seconds = 0;
  pool_->ForEach(std::ssize(others_), [&](int64_t i, int thread) {
    Task(policy, *others_[i], params, scratch_[thread]).Run();
  });
  double solve = 0;
  for (const Scratch& scratch : scratch_) solve = std::max(solve, scratch.solve_seconds);
  seconds->solve += solve;
  seconds->attention -= solve;
}

}  // namespace winnow
