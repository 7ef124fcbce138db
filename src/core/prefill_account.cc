#include "core/prefill_account.h"

namespace winnow {

const char* Name(PruneVerdict verdict) {
  switch (verdict) {
    case PruneVerdict::kAccepted:
      return "accepted";
    case PruneVerdict::kTargetNotMet:
      return "target_not_met";
    case PruneVerdict::kStreakNotMet:
      return "streak_not_met";
    case PruneVerdict::kAuditFailed:
      return "audit_failed";
    case PruneVerdict::kNonFinite:
      return "nonfinite";
    case PruneVerdict::kInvalidResidual:
      return "invalid_residual";
    case PruneVerdict::kInvalidDocumentMass:
      return "invalid_document_mass";
  }
  return "";
}

const char* Name(PruneOutcome outcome) {
  switch (outcome) {
    case PruneOutcome::kPruned:
      return "pruned";
    case PruneOutcome::kFullContext:
      return "full_context";
    case PruneOutcome::kNoCandidates:
      return "bypass_no_candidates";
    case PruneOutcome::kZeroTarget:
      return "bypass_zero_target";
    case PruneOutcome::kNothingRemovable:
      return "bypass_nothing_removable";
    case PruneOutcome::kDoesNotPay:
      return "bypass_does_not_pay";
  }
  return "";
}

}  // namespace winnow
