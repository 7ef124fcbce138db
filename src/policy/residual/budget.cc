#include "policy/residual/budget.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/error.h"
#include "policy/select/routing.h"

namespace winnow {
namespace {

void CheckCounts(int64_t n_tokens, const AnchorRule& anchors) {
  if (n_tokens < 0 || anchors.sinks < 0 || anchors.tail < 0) {
    Throw(ErrorKind::kUsage, "{} tokens with {} sinks and a tail of {}: none may be negative",
          n_tokens, anchors.sinks, anchors.tail);
  }
}

}  // namespace

int64_t ExactBudget(int64_t n_tokens, double fraction, const AnchorRule& anchors) {
  CheckCounts(n_tokens, anchors);
  if (!std::isfinite(fraction) || fraction < 0) {
    Throw(ErrorKind::kUsage, "a share of {} of the tokens cannot be read", fraction);
  }
  constexpr double kDigits = 1e9;
  // More than everything reads everything: also keeps the product within an int64_t.
  const double wanted = std::min(fraction, 1.0) * static_cast<double>(n_tokens);
  const auto exact = static_cast<int64_t>(std::ceil(std::nearbyint(wanted * kDigits) / kDigits));
  return std::max<int64_t>(0, exact - std::min(anchors.sinks, exact) - anchors.tail);
}

PositionSplit SplitPositions(int64_t n_tokens, int64_t n_generated, const AnchorRule& anchors) {
  CheckCounts(n_tokens, anchors);
  if (n_generated < 0 || n_generated > n_tokens) {
    Throw(ErrorKind::kUsage, "{} generated tokens of {}", n_generated, n_tokens);
  }
  const int64_t prompt = n_tokens - n_generated;
  const int64_t middle_begin = std::min(anchors.sinks, prompt);
  const int64_t middle_end = std::max(middle_begin, prompt - std::min(anchors.tail, prompt));
  PositionSplit split;
  for (int64_t i = 0; i < n_tokens; ++i) {
    const bool in_middle = middle_begin <= i && i < middle_end;
    (in_middle ? split.middle : split.anchors).push_back(i);
  }
  return split;
}

Retrieval RetrieveTop(std::span<const int64_t> middle, std::span<const double> scores, int64_t k) {
  WINNOW_CHECK(middle.size() == scores.size(), "{} positions and {} scores", middle.size(),
               scores.size());
  Retrieval result;
  const std::vector<int64_t> top = TopIndices(scores, k);
  auto next = top.begin();
  for (int64_t i = 0; i < std::ssize(middle); ++i) {
    const bool chosen = next != top.end() && *next == i;
    if (chosen) ++next;
    (chosen ? result.retrieved : result.residual).push_back(middle[i]);
  }
  return result;
}

}  // namespace winnow
