// What kind of statement a figure is, so that an estimate is never printed as a bound.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace winnow {

// From the strongest to the weakest.
enum class StatementKind : uint8_t {
  kExact,          // everything it depends on was read
  kDeterministic,  // holds for every content of what was not read
  kStatistical,    // holds with probability 1 − δ over our own random draws, for any sample size
  kAsymptotic,     // holds with probability 1 − δ as the sample grows: no bound
  kEstimate,       // no promise
};

enum class Standing : uint8_t {
  kInformative,
  kVacuous,    // true, but it says no more than what holds without looking
  kNotFinite,  // NaN or infinity came in or up: nothing is claimed
};

struct Statement {
  StatementKind kind = StatementKind::kEstimate;
  Standing standing = Standing::kInformative;
  double delta = 0;  // probability of being wrong; only of the kinds with a δ

  // May be relied upon: not an estimate, not asymptotic, finite. Vacuous bounds are bounds.
  bool IsBound() const {
    return kind <= StatementKind::kStatistical && standing != Standing::kNotFinite;
  }
};

std::string_view KindName(StatementKind kind);     // "exact", .. "estimate"
std::string_view StandingName(Standing standing);  // "informative", "vacuous", "not finite"
std::string Describe(const Statement& statement);  // such as "statistical(0.05), vacuous"

// What may be said of a figure that rests on both: the weaker kind, the worse standing, and the sum
// of the δ (union bound), at most 1.
Statement Both(const Statement& a, const Statement& b);

}  // namespace winnow
