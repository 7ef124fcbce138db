#include "policy/certify/statement.h"

#include <fmt/format.h>

#include <algorithm>

namespace winnow {

std::string_view KindName(StatementKind kind) {
  switch (kind) {
    case StatementKind::kExact:
      return "exact";
    case StatementKind::kDeterministic:
      return "deterministic";
    case StatementKind::kStatistical:
      return "statistical";
    case StatementKind::kAsymptotic:
      return "asymptotic";
    case StatementKind::kEstimate:
      break;
  }
  return "estimate";
}

std::string_view StandingName(Standing standing) {
  switch (standing) {
    case Standing::kInformative:
      return "informative";
    case Standing::kVacuous:
      return "vacuous";
    case Standing::kNotFinite:
      break;
  }
  return "not finite";
}

std::string Describe(const Statement& statement) {
  std::string text(KindName(statement.kind));
  if (statement.kind == StatementKind::kStatistical ||
      statement.kind == StatementKind::kAsymptotic) {
    text += fmt::format("({:.6g})", statement.delta);
  }
  if (statement.standing != Standing::kInformative) {
    text += fmt::format(", {}", StandingName(statement.standing));
  }
  return text;
}

Statement Both(const Statement& a, const Statement& b) {
  return {std::max(a.kind, b.kind), std::max(a.standing, b.standing),
          std::min(1.0, a.delta + b.delta)};
}

}  // namespace winnow
