#include "policy/select/read_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>

#include "core/error.h"
#include "policy/residual/budget.h"
#include "policy/select/routing.h"

namespace winnow {
namespace {

constexpr int64_t kManyTokens = int64_t{1} << 30;

// Sums are of lanes, so that compilers make vectors of them.
constexpr size_t kSumLanes = 16;

double SumOf(std::span<const float> shares) {
  double sums[kSumLanes] = {};
  const size_t even = shares.size() / kSumLanes * kSumLanes;
  for (size_t i = 0; i < even; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) sums[lane] += shares[i + lane];
  }
  const double of_lanes = std::accumulate(sums, sums + kSumLanes, 0.0);
  return std::accumulate(shares.begin() + even, shares.end(), of_lanes);
}

// Larger shares first, ties to the lower page.
auto Better(std::span<const float> pooled) {
  return [pooled](int32_t a, int32_t b) {
    return pooled[a] != pooled[b] ? pooled[a] > pooled[b] : a < b;
  };
}

Fallback ParseFallback(Params& params) {
  const std::string name = params.Choice("fallback", "widen", {"widen", "dense", "cap"});
  return name == "widen" ? Fallback::kWiden : name == "dense" ? Fallback::kDense : Fallback::kCap;
}

// The smallest k such that the shares after the first k, of `sum` in all, add up to at most
// `allowed`.
int64_t PagesUntil(std::span<const float> descending, double sum, double allowed) {
  int64_t k = 0;
  while (k < std::ssize(descending) && sum > allowed) sum -= descending[k++];
  return k;
}

int DenseLayers(Params& params, bool sparse_everywhere) {
  return static_cast<int>(params.Int("dense_layers", sparse_everywhere ? 0 : 2, 0, kManyTokens));
}

// Of n pages, how many to read where k were chosen and `needed` would meet the tolerance.
int64_t Widen(Fallback fallback, int64_t k, int64_t needed, int64_t n, PageChoice* choice) {
  choice->over_tolerance = fallback == Fallback::kCap && k < needed;
  if (choice->over_tolerance) return k;
  while (fallback == Fallback::kWiden && k < needed && choice->widened < kMaxWidenings) {
    k = std::min<int64_t>(std::max<int64_t>(2 * k, 1), n);
    ++choice->widened;
  }
  choice->all_for_tolerance = k < needed;
  return choice->all_for_tolerance ? n : k;
}

}  // namespace

ReadRule ReadRule::FromParams(Params& params, bool sparse_everywhere) {
  ReadRule rule;
  const bool by_fraction = params.Has("fraction");
  if ((params.Has("budget") && (params.Has("mass") || by_fraction)) ||
      (params.Has("mass") && by_fraction)) {
    Throw(ErrorKind::kUsage, "{}: budget, mass and fraction contradict each other: one of them",
          params.policy());
  }
  if (by_fraction) {
    rule.fraction = params.Number("fraction", 0.01, 1e-9, 1);
  } else if (params.Has("mass")) {
    rule.mass = params.Number("mass", 0.99, 1e-6, 1);
    rule.floor = params.Int("floor", 0, 0, kManyTokens);
    rule.cap = params.Int("cap", 0, 0, kManyTokens);
    if (rule.cap != 0 && rule.cap < rule.floor) {
      Throw(ErrorKind::kUsage, "{}: cap {} is below floor {}", params.policy(), rule.cap,
            rule.floor);
    }
  } else {
    rule.budget = params.Int("budget", sparse_everywhere ? 128 : 256, 1, kManyTokens);
  }
  rule.tolerance = params.Number("tol", 1, 0, 1);
  if (params.Has("tol_error")) {
    rule.error_tolerance = params.Number("tol_error", 1, 0, 1e9);
  }
  rule.gap = params.Number("gap", 0, 0, 1e9);
  rule.fallback = ParseFallback(params);
  rule.sinks = params.Int("sinks", 4, 0, kManyTokens);
  // A share of the prompt has the paper's anchors: its last 16 tokens, and what is generated.
  rule.recent = params.Int("recent", by_fraction ? 1 : 64, 1, kManyTokens);
  rule.tail = params.Int("tail", by_fraction ? 16 : 0, 0, kManyTokens);
  rule.gen_exact = params.Int("gen_exact", 1024, 0, kManyTokens);
  // A target of mass without a cap reads as much of the diffuse first layers as they need.
  rule.dense_layers = DenseLayers(params, sparse_everywhere || (rule.mass > 0 && rule.cap == 0));
  return rule;
}

ReadRule ReadRule::OfEverything(Params& params) {
  return {.budget = kManyTokens, .dense_layers = DenseLayers(params, false)};
}

MiddlePages FindMiddle(const ReadRule& rule, int64_t n_tokens, int64_t n_generated, int slots) {
  const int64_t begin = (rule.sinks + slots - 1) / slots;
  const int64_t kept = std::min(n_generated, rule.gen_exact) + rule.tail;
  const int64_t end = std::max<int64_t>(0, n_tokens - std::max(rule.recent, kept)) / slots;
  MiddlePages middle = {begin, std::max(begin, end), rule.budget};
  if (rule.fraction > 0) {
    middle.budget = ExactBudget(n_tokens - n_generated, rule.fraction,
                                {.sinks = rule.sinks, .tail = rule.tail});
  }
  return middle;
}

void ChoosePages(const ReadRule& rule, std::span<const float> pooled, int group, int slots,
                 MiddlePages middle, PageChoice* choice) {
  *choice = {.read = std::move(choice->read),
             .unread = std::move(choice->unread),
             .descending = std::move(choice->descending)};
  choice->read.clear();
  choice->unread.clear();
  const std::span<const float> in_middle = pooled.subspan(middle.begin, middle.end - middle.begin);
  const auto n = std::ssize(in_middle);
  const double sum = SumOf(in_middle);
  choice->not_finite = !std::isfinite(sum);
  if (choice->not_finite) return;
  const auto pages = [slots](int64_t tokens) { return (tokens + slots - 1) / slots; };
  const double tolerance = rule.certified ? 1 : rule.tolerance;

  int64_t k = std::min<int64_t>(pages(rule.fraction > 0 ? middle.budget : rule.budget), n);
  if (rule.mass > 0 || tolerance < 1) {
    std::vector<float>& descending = choice->descending;
    descending.assign(in_middle.begin(), in_middle.end());
    std::sort(descending.begin(), descending.end(), std::greater<>());
    if (rule.mass > 0) {
      k = std::max(PagesUntil(descending, sum, (1 - rule.mass) * group), pages(rule.floor));
      if (rule.cap > 0) k = std::min(k, pages(rule.cap));
      k = std::min<int64_t>(k, n);
    }
    if (tolerance < 1) {
      k = Widen(rule.fallback, k, PagesUntil(descending, sum, tolerance * group), n, choice);
    }
  }
  const std::vector<int64_t> best = TopFloatIndices(in_middle, k);
  auto next = best.begin();
  for (int64_t i = 0; i < n; ++i) {
    const bool read = next != best.end() && *next == i;
    if (read) ++next;
    (read ? choice->read : choice->unread).push_back(static_cast<int32_t>(middle.begin + i));
  }
}

std::vector<int32_t> PageChoice::ReadMore(std::span<const float> pooled, int64_t n) {
  std::vector<int32_t> more = unread;
  n = std::min<int64_t>(n, std::ssize(more));
  if (n < std::ssize(more)) {
    std::nth_element(more.begin(), more.begin() + n, more.end(), Better(pooled));
    more.resize(n);
    std::sort(more.begin(), more.end());
  }
  std::vector<int32_t> rest;
  std::set_difference(unread.begin(), unread.end(), more.begin(), more.end(),
                      std::back_inserter(rest));
  unread = std::move(rest);
  const auto middle = read.insert(read.end(), more.begin(), more.end());
  std::inplace_merge(read.begin(), middle, read.end());
  return more;
}

float ScoreGap(const PageMasses& masses, int group, MiddlePages middle) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float least = kInfinity;
  for (int r = 0; r < group; ++r) {
    float best = -kInfinity;
    float second = -kInfinity;
    for (int64_t page = middle.begin; page < middle.end; ++page) {
      const float score = masses.max[r * masses.stride + page];
      second = std::max(second, std::min(best, score));
      best = std::max(best, score);
    }
    if (second > -kInfinity) least = std::min(least, best - second);
  }
  return least;
}

void DropTail(std::span<const float> pooled, double tail, std::vector<int32_t>* pages) {
  if (tail <= 0 || pages->empty()) return;
  // The threshold by bisection in the logarithm: shares span many orders of magnitude, and sorting
  // a few hundred pages a layer and head costs as much as scanning them.
  const double allowed = tail * SumOf(pooled);
  std::vector<float> shares((pages->size() + kSumLanes - 1) / kSumLanes * kSumLanes, 0.0f);
  for (size_t i = 0; i < pages->size(); ++i) shares[i] = pooled[(*pages)[i]];
  const auto below = [&](float threshold) {
    float sums[kSumLanes] = {};
    for (size_t i = 0; i < shares.size(); i += kSumLanes) {
      for (size_t lane = 0; lane < kSumLanes; ++lane) {
        sums[lane] += shares[i + lane] < threshold ? shares[i + lane] : 0.0f;
      }
    }
    return std::accumulate(sums, sums + kSumLanes, 0.0);
  };
  float low = static_cast<float>(allowed / static_cast<double>(pages->size()));
  float high = static_cast<float>(allowed) * 2;
  for (int i = 0; i < 10 && high > low; ++i) {
    const float middle = std::sqrt(low * high);
    (below(middle) <= allowed ? low : high) = middle;
  }
  std::erase_if(*pages, [&](int32_t page) { return pooled[page] < low; });
}

}  // namespace winnow
