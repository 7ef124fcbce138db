#include "policy/prefill/layer_selection.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace winnow {

double SetChange(std::span<const uint8_t> removed, std::span<const uint8_t> removed_before) {
  WINNOW_CHECK(removed.size() == removed_before.size(), "{} and {} chunks", removed.size(),
               removed_before.size());
  int64_t differ = 0;
  int64_t retained = 0;  // by either
  for (size_t i = 0; i < removed.size(); ++i) {
    if ((removed[i] != 0) != (removed_before[i] != 0)) ++differ;
    if (removed[i] == 0 || removed_before[i] == 0) ++retained;
  }
  return static_cast<double>(differ) / static_cast<double>(std::max<int64_t>(1, retained));
}

std::optional<PruneOutcome> BypassBeforeScoring(int64_t n_chunks, int64_t min_chunks,
                                                int64_t target_saving) {
  if (n_chunks == 0) return PruneOutcome::kNoCandidates;
  if (target_saving <= 0) return PruneOutcome::kZeroTarget;
  if (min_chunks >= n_chunks) return PruneOutcome::kNothingRemovable;
  return std::nullopt;
}

LayerSelector::Step LayerSelector::ObserveInvalid(PruneVerdict verdict) {
  predecessor_.reset();
  streak_ = 0;
  return {.verdict = verdict};
}

LayerSelector::Step LayerSelector::Observe(std::span<const uint8_t> removed, int64_t saving,
                                           FunctionRef<AuditResult()> audit) {
  Step step;
  if (predecessor_.has_value()) {
    step.set_change = SetChange(removed, *predecessor_);
    streak_ = step.set_change <= rule_.max_change ? streak_ + 1 : 0;
  }
  predecessor_.emplace(removed.begin(), removed.end());
  step.streak = streak_;
  if (saving < rule_.target_saving) {
    step.verdict = PruneVerdict::kTargetNotMet;
  } else if (streak_ < rule_.min_streak) {
    step.verdict = PruneVerdict::kStreakNotMet;
  } else {
    step.audit = audit();
    step.verdict = step.audit->passes ? PruneVerdict::kAccepted : PruneVerdict::kAuditFailed;
  }
  return step;
}

}  // namespace winnow
