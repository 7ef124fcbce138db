#include "policy/select/read_rule.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "policy/residual/budget.h"

namespace winnow {
namespace {

constexpr int64_t kManyTokens = int64_t{1} << 30;
constexpr int kMaxWidenings = 2;

// The smallest k <= n such that the pages after the first k of `order`, whose pooled shares add up
// to `unread` together, add up to at most `allowed`.
int64_t PagesUntil(std::span<const float> pooled, const std::vector<int32_t>& order, double unread,
                   double allowed) {
  int64_t k = 0;
  while (k < std::ssize(order) && unread > allowed) unread -= pooled[order[k++]];
  return k;
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
  rule.sinks = params.Int("sinks", 4, 0, kManyTokens);
  // A share of the prompt has the paper's anchors: its last 16 tokens, and what is generated.
  rule.recent = params.Int("recent", by_fraction ? 1 : 64, 1, kManyTokens);
  rule.tail = params.Int("tail", by_fraction ? 16 : 0, 0, kManyTokens);
  rule.gen_exact = params.Int("gen_exact", 1024, 0, kManyTokens);
  rule.dense_layers =
      static_cast<int>(params.Int("dense_layers", sparse_everywhere ? 0 : 2, 0, kManyTokens));
  return rule;
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
  *choice = {.read = std::move(choice->read), .unread = std::move(choice->unread)};
  std::vector<int32_t>& order = choice->read;
  order.clear();
  choice->unread.clear();
  double in_middle = 0;
  for (int64_t page = middle.begin; page < middle.end; ++page) {
    order.push_back(static_cast<int32_t>(page));
    in_middle += pooled[page];
  }
  const auto n = std::ssize(order);
  choice->not_finite = !std::isfinite(in_middle);
  if (choice->not_finite) return;
  const auto pages = [slots](int64_t tokens) { return (tokens + slots - 1) / slots; };
  const auto better = [&](int32_t a, int32_t b) {
    return pooled[a] != pooled[b] ? pooled[a] > pooled[b] : a < b;
  };

  int64_t k = std::min<int64_t>(pages(rule.fraction > 0 ? middle.budget : rule.budget), n);
  const bool by_share = rule.mass > 0 || rule.tolerance < 1;
  if (by_share) {
    std::sort(order.begin(), order.end(), better);
    if (rule.mass > 0) {
      k = std::max(PagesUntil(pooled, order, in_middle, (1 - rule.mass) * group),
                   pages(rule.floor));
      if (rule.cap > 0) k = std::min(k, pages(rule.cap));
      k = std::min<int64_t>(k, n);
    }
    if (rule.tolerance < 1) {
      const int64_t needed = PagesUntil(pooled, order, in_middle, rule.tolerance * group);
      while (k < needed && choice->widened < kMaxWidenings) {
        k = std::min<int64_t>(std::max<int64_t>(2 * k, 1), n);
        ++choice->widened;
      }
      choice->all_for_tolerance = k < needed;
      if (choice->all_for_tolerance) k = n;
    }
  } else if (k > 0 && k < n) {
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), better);
  }
  // The k best are those not worse than the k-th.
  const int32_t last = k > 0 ? order[k - 1] : 0;
  order.clear();
  for (auto page = static_cast<int32_t>(middle.begin); page < middle.end; ++page) {
    const bool read = k == n || (k > 0 && !better(last, page));
    (read ? order : choice->unread).push_back(page);
  }
}

void DropTail(std::span<const float> pooled, double tail, std::vector<int32_t>* pages) {
  if (tail <= 0 || pages->empty()) return;
  // The threshold by bisection in the logarithm: shares span many orders of magnitude, and sorting
  // a few hundred pages a layer and head costs as much as scanning them.
  double allowed = 0;
  for (float share : pooled) allowed += share;
  allowed *= tail;
  const auto below = [&](float threshold) {
    double sum = 0;
    for (int32_t page : *pages) sum += pooled[page] < threshold ? pooled[page] : 0.0f;
    return sum;
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
