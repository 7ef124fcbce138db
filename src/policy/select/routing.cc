#include "policy/select/routing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Dot(std::span<const double> a, const double* b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

double HalfVariance(std::span<const double> query, const double* deviation) {
  double sum = 0;
  for (size_t d = 0; d < query.size(); ++d) {
    const double x = query[d] * deviation[d];
    sum += x * x;
  }
  return sum / 2;
}

double BoxMaximum(std::span<const double> query, const double* low, const double* high) {
  double sum = 0;
  for (size_t d = 0; d < query.size(); ++d) sum += std::max(query[d] * low[d], query[d] * high[d]);
  return sum;
}

double ScorePage(PageScore kind, const PageSummaries& pages, std::span<const double> query,
                 int64_t page) {
  switch (kind) {
    case PageScore::kMean:
      return Dot(query, pages.mean.row(page));
    case PageScore::kMeanStd:
      return std::log(static_cast<double>(pages.counts[page])) + Dot(query, pages.mean.row(page)) +
             HalfVariance(query, pages.deviation.row(page));
    case PageScore::kBox:
      return BoxMaximum(query, pages.low.row(page), pages.high.row(page));
  }
  WINNOW_CHECK(false, "page score {}", static_cast<int>(kind));
  return 0;
}

// Integers in the order of the numbers, NaN above all of them; both zeros are one.
int32_t OrderedBits(float x) {
  if (std::isnan(x)) return std::numeric_limits<int32_t>::max();
  const auto bits = std::bit_cast<int32_t>(x + 0.0f);
  return bits < 0 ? bits ^ std::numeric_limits<int32_t>::max() : bits;
}

}  // namespace

void ScorePages(PageScore kind, const PageSummaries& pages, std::span<const double> scaled_query,
                std::span<double> scores) {
  const auto n_pages = std::ssize(scores);
  const std::array<int64_t, 2> shape{n_pages, std::ssize(scaled_query)};
  if (kind == PageScore::kBox) {
    WINNOW_CHECK(pages.low.shape == shape && pages.high.shape == shape);
  } else {
    WINNOW_CHECK(pages.mean.shape == shape);
    WINNOW_CHECK(kind == PageScore::kMean ||
                 (pages.deviation.shape == shape && std::ssize(pages.counts) == n_pages));
  }
  for (int64_t page = 0; page < n_pages; ++page) {
    scores[page] = ScorePage(kind, pages, scaled_query, page);
  }
}

void SharePageScores(TensorView<const double, 2> log_mass, std::span<double> shared) {
  const auto [n_heads, n_pages] = log_mass.shape;
  WINNOW_CHECK(std::ssize(shared) == n_pages);
  std::fill(shared.begin(), shared.end(), 0.0);
  for (int64_t head = 0; head < n_heads; ++head) {
    const double* row = log_mass.row(head);
    double max = -kInfinity;
    for (int64_t page = 0; page < n_pages; ++page) max = std::max(max, row[page]);
    double sum = 0;
    for (int64_t page = 0; page < n_pages; ++page) sum += std::exp(row[page] - max);
    for (int64_t page = 0; page < n_pages; ++page) shared[page] += std::exp(row[page] - max) / sum;
  }
}

std::vector<int64_t> TopIndices(std::span<const double> scores, int64_t k) {
  std::vector<int64_t> indices(scores.size());
  std::iota(indices.begin(), indices.end(), int64_t{0});
  k = std::clamp<int64_t>(k, 0, std::ssize(scores));
  const auto before = [&](int64_t a, int64_t b) {
    const bool a_is_nan = std::isnan(scores[a]);
    const bool b_is_nan = std::isnan(scores[b]);
    if (a_is_nan || b_is_nan) return a_is_nan && (!b_is_nan || a < b);
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  std::nth_element(indices.begin(), indices.begin() + k, indices.end(), before);
  indices.resize(k);
  std::sort(indices.begin(), indices.end());
  return indices;
}

std::vector<int64_t> TopFloatIndices(std::span<const float> scores, int64_t k) {
  k = std::clamp<int64_t>(k, 0, std::ssize(scores));
  std::vector<int64_t> indices(k);
  if (k == 0 || k == std::ssize(scores)) {
    std::iota(indices.begin(), indices.end(), int64_t{0});
    return indices;
  }
  // The threshold by bisection over the numbers' bits, each step of which is a pass that compilers
  // make vectors of: sorting as many numbers as there are pages costs several times as much.
  std::vector<int32_t> keys(scores.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = OrderedBits(scores[i]);
  const auto [least, largest] = std::minmax_element(keys.begin(), keys.end());
  int64_t low = *least;  // at least k keys are no less
  int64_t high = *largest;
  while (low < high) {
    const int64_t middle = high - (high - low) / 2;
    const auto bound = static_cast<int32_t>(middle);
    int32_t n = 0;
    for (const int32_t key : keys) n += key >= bound ? 1 : 0;
    (n >= k ? low : high) = n >= k ? middle : middle - 1;
    if (n == k) break;
  }
  const auto last = static_cast<int32_t>(low);
  int64_t equals_left =
      k - std::count_if(keys.begin(), keys.end(), [last](int32_t key) { return key > last; });
  auto next = indices.begin();
  for (size_t i = 0; i < keys.size() && next != indices.end(); ++i) {
    if (keys[i] > last || (keys[i] == last && equals_left-- > 0)) *next++ = static_cast<int64_t>(i);
  }
  return indices;
}

double TopTwoGap(std::span<const double> scores) {
  double first = -kInfinity;
  double second = -kInfinity;
  for (double score : scores) {
    if (std::isnan(score)) return score;
    second = std::max(second, std::min(first, score));
    first = std::max(first, score);
  }
  return scores.size() < 2 ? kInfinity : first - second;
}

Routing RouteTokens(std::span<const double> page_scores, TensorView<const double, 2> keys,
                    std::span<const double> scaled_query, int64_t page_tokens,
                    RoutingLimits limits) {
  const int64_t n_tokens = keys.shape[0];
  WINNOW_CHECK(page_tokens >= 1 && keys.shape[1] == std::ssize(scaled_query) &&
                   std::ssize(page_scores) == (n_tokens + page_tokens - 1) / page_tokens,
               "{} pages of {} for {} tokens", page_scores.size(), page_tokens, n_tokens);
  Routing routing;
  routing.pages = TopIndices(page_scores, limits.pages);

  std::vector<int64_t> candidates;
  std::vector<double> scores;
  for (int64_t page : routing.pages) {
    const int64_t end = std::min(n_tokens, (page + 1) * page_tokens);
    for (int64_t token = page * page_tokens; token < end; ++token) {
      candidates.push_back(token);
      scores.push_back(Dot(scaled_query, keys.row(token)));
    }
  }
  routing.score_gap = TopTwoGap(scores);
  for (int64_t index : TopIndices(scores, limits.tokens)) {
    routing.tokens.push_back(candidates[index]);
    routing.token_scores.push_back(scores[index]);
  }
  return routing;
}

}  // namespace winnow
