// The words that an audit's outcome is told in, wherever it is told: a passed audit says where the
// observers look, and Proposition 6.1 is why it can say no more.
#pragma once

#include <cstdint>
#include <string_view>

namespace winnow {

enum class AuditVerdict : uint8_t {
  kPassed,
  kFailed,
  kUninformative,  // could not have failed once the scan had passed
  kVacuous,        // its slack alone exceeds the tolerance: could not have passed
  kNotRun,
};

// One sentence, lower case, without a full stop.
constexpr std::string_view AuditStatement(AuditVerdict verdict) {
  switch (verdict) {
    case AuditVerdict::kPassed:
      return "audit passed: at this layer the observers paid little attention to what was removed; "
             "that says nothing of its relevance to the answer";
    case AuditVerdict::kFailed:
      return "audit failed: at this layer the observers paid attention to what would have been "
             "removed";
    case AuditVerdict::kUninformative:
      return "audit uninformative: it could not have failed after the scan, so it adds nothing to "
             "the scan's limits; neither says anything of relevance to the answer";
    case AuditVerdict::kVacuous:
      return "audit vacuous: with so few draws its slack alone exceeds the tolerance, so it could "
             "not have passed";
    case AuditVerdict::kNotRun:
      return "no audit was run";
  }
  return "";
}

}  // namespace winnow
