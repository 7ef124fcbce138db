// Which positions are read exactly: anchors, and the best of the middle within the paper's budget
// (Residual-Mass Accounting, exact support).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace winnow {

// Positions that are always exact: the first `sinks` and the last `tail` of the prompt.
struct AnchorRule {
  int64_t sinks = 4;
  int64_t tail = 16;
};

// K, the middle tokens to retrieve so that with the anchors a share `fraction` of `n_tokens` is
// exact: max(0, ⌈round(fraction·n_tokens, 9)⌉ − sinks − tail). The rounding keeps a product such as
// 0.07·100 = 7.000000000000001 from costing a token. Throws Error(kUsage) if the fraction is
// negative or not finite, or a count is negative.
int64_t ExactBudget(int64_t n_tokens, double fraction, const AnchorRule& anchors);

// All positions of a sequence, each in exactly one list; lists ascend.
struct PositionSplit {
  std::vector<int64_t> anchors;  // sinks, tail and generated tokens
  std::vector<int64_t> middle;   // the rest of the prompt
};
// The last `n_generated` of `n_tokens` follow the prompt and are exact. Anchors that cover the
// prompt leave no middle. Throws Error(kUsage) for a negative count, or more generated tokens than
// tokens.
PositionSplit SplitPositions(int64_t n_tokens, int64_t n_generated, const AnchorRule& anchors);

struct Retrieval {
  std::vector<int64_t> retrieved;  // positions, ascending
  std::vector<int64_t> residual;   // the other positions of the middle, ascending
};
// The `k` positions of the middle with the largest scores (one each, in the order of `middle`);
// ties go to the lower position, a NaN ranks first. k beyond the middle takes all.
Retrieval RetrieveTop(std::span<const int64_t> middle, std::span<const double> scores, int64_t k);

}  // namespace winnow
