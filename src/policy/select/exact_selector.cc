#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/summary_scan.h"
#include "ops/token_rows.h"
#include "policy/select/routing.h"
#include "policy/select/selectors.h"

namespace winnow {
namespace {

// The K tokens with the largest exact scores of all keys, the Residual-Mass paper's oracle: half of
// dense's bytes. One choice serves a KV head's query heads, by the sum of their shares. Of a page
// that holds such tokens only they count; of its other tokens the mass is known exactly.
class ExactSelector : public Selector {
 public:
  PlaneSet planes() const override { return {}; }
  bool chooses() const override { return true; }
  bool chooses_tokens() const override { return true; }

  void Score(const LayerStep& step, int64_t* bytes_read) override {
    queries_.resize(step.queries.size());
    for (size_t i = 0; i < step.queries.size(); ++i) {
      ScoreQuery(step, i);
      const PageLayout& layout = *step.queries[i].kv.layout;
      *bytes_read += layout.TokenBytes(step.masses[i].n_pages * layout.slots) / 2;
    }
  }

  void Choose(const ReadRule& /*rule*/, const ChoiceHead& head, PageChoice* choice) override {
    Query& query = queries_[head.query];
    *choice = {};
    std::vector<float> shares(head.group * query.n_tokens);
    std::vector<float> pooled(query.n_tokens);
    std::vector<float> log_totals(head.group);
    std::vector<float> ones(shares.size(), 1.0f);
    PageShares({.n_pages = query.n_tokens,
                .stride = query.n_tokens,
                .max = query.scores.data() +
                       static_cast<int64_t>(head.kv_head) * head.group * query.n_tokens,
                .sum = ones.data()},
               head.group, shares.data(), pooled.data(), log_totals.data());
    choice->not_finite = !std::isfinite(pooled[0]);  // a NaN is in every share
    if (choice->not_finite) return;
    const int64_t slots = query.slots;
    const int64_t begin = head.middle.begin * slots;
    const std::span<const float> middle =
        std::span(pooled).subspan(begin, (head.middle.end - head.middle.begin) * slots);
    const std::vector<int64_t> tokens = TopFloatIndices(middle, head.middle.budget);
    auto token = tokens.begin();
    for (int64_t page = head.middle.begin; page < head.middle.end; ++page) {
      const int64_t end = (page + 1 - head.middle.begin) * slots;
      const bool read = token != tokens.end() && *token < end;
      const int64_t first_of_read = std::ssize(choice->read) * slots;
      for (; token != tokens.end() && *token < end; ++token) {
        choice->tokens.push_back(static_cast<int32_t>(first_of_read + *token % slots));
      }
      (read ? choice->read : choice->unread).push_back(static_cast<int32_t>(page));
    }
  }

 private:
  struct Query {
    int64_t n_tokens = 0;  // of full pages
    int64_t slots = 0;
    std::vector<float> scores;  // [H, n_tokens]
    std::vector<float> q;       // [H, D], scaled
  };

  void ScoreQuery(const LayerStep& step, size_t index) {
    const LayerQuery& in = step.queries[index];
    const PageMasses& masses = step.masses[index];
    const PageLayout& layout = *in.kv.layout;
    const int group = step.params.query_heads / layout.kv_heads;
    Query& query = queries_[index];
    query.slots = layout.slots;
    query.n_tokens = masses.n_pages * layout.slots;
    query.scores.resize(step.params.query_heads * query.n_tokens);
    query.q.resize(static_cast<size_t>(step.params.query_heads) * layout.head_dim);
    ScaleQueryRows(in.q, step.params.query_heads, layout.head_dim, layout.head_dim,
                   step.params.scale, query.q.data());
    step.pool->ForEach(masses.n_pages * layout.kv_heads, [&](int64_t task, int /*thread*/) {
      const int64_t page = task / layout.kv_heads;
      const auto kv_head = static_cast<int>(task % layout.kv_heads);
      PagedKv kv = in.kv;
      kv.pages = kv.pages.subspan(page, 1);
      kv.n_tokens = layout.slots;
      const int64_t first = static_cast<int64_t>(kv_head) * group;
      float* scores = query.scores.data() + first * query.n_tokens + page * layout.slots;
      ScoreTokens({&kv, kv_head, group}, query.q.data() + first * layout.head_dim, scores,
                  query.n_tokens);
      for (int r = 0; r < group; ++r) {
        MassOf(std::span(scores + r * query.n_tokens, layout.slots),
               masses.max + (first + r) * masses.stride + page,
               masses.sum + (first + r) * masses.stride + page);
      }
    });
  }

  static void MassOf(std::span<const float> scores, float* max, float* sum) {
    *max = *std::max_element(scores.begin(), scores.end());
    *sum = 0;
    for (float score : scores) *sum += std::exp(score - *max);
    // max_element may pass over a NaN, the sum does not.
    if (std::isnan(*sum)) *max = *sum;
  }

  std::vector<Query> queries_;
};

}  // namespace

std::unique_ptr<Selector> MakeExactSelector(Params& params) {
  // The paper reads everything generated.
  if (!params.Has("gen_exact")) {
    params.Set("gen_exact", fmt::format("{}", std::numeric_limits<int32_t>::max() / 2 + 1));
  }
  return std::make_unique<ExactSelector>();
}

}  // namespace winnow
