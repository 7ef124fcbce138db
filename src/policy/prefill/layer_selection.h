// Which monitored layer a prompt is pruned at: Algorithm 1 of EntroPrefill as a state machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/function_ref.h"
#include "core/prefill_account.h"
#include "policy/prefill/audit.h"

namespace winnow {

// (19): |R Δ R'| / max(1, |R ∪ R'|) of the chunks that two removals retain. Flags [k] of equal
// length, 1 for removed.
double SetChange(std::span<const uint8_t> removed, std::span<const uint8_t> removed_before);

struct SelectionRule {
  int64_t target_saving = 0;  // tokens
  int min_streak = 1;         // v; 0 switches stability off
  double max_change = 0.5;    // θ
};

// Why no layer has to be scored at all, if so. `n_chunks` k, `min_chunks` m0.
std::optional<PruneOutcome> BypassBeforeScoring(int64_t n_chunks, int64_t min_chunks,
                                                int64_t target_saving);

// Is told of the monitored layers in order, until one is accepted.
class LayerSelector {
 public:
  struct Step {
    PruneVerdict verdict = PruneVerdict::kTargetNotMet;
    double set_change = kUndefined;  // without a predecessor
    int streak = 0;                  // after this layer
    std::optional<AuditResult> audit;
  };

  explicit LayerSelector(const SelectionRule& rule) : rule_(rule) {}

  // A layer that nothing can be proposed at (one of the last three verdicts): forgets the
  // predecessor and the streak.
  Step ObserveInvalid(PruneVerdict verdict);
  // A layer that proposes to remove `removed` [k], which saves `saving` tokens. Moves predecessor
  // and streak whatever the proposal is, tests target, streak and audit in this order, and calls
  // `audit` only if the others hold. A failed audit changes nothing else.
  Step Observe(std::span<const uint8_t> removed, int64_t saving, FunctionRef<AuditResult()> audit);

 private:
  SelectionRule rule_;
  int streak_ = 0;
  std::optional<std::vector<uint8_t>> predecessor_;
};

}  // namespace winnow
