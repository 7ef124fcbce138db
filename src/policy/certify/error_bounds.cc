#include "policy/certify/error_bounds.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

constexpr double kSmallestMass = 1e-290;  // of scaled masses

using Term = BoundScratch::Term;

double Distance(std::span<const double> a, std::span<const double> b) {
  WINNOW_CHECK(a.size() == b.size(), "values of {} and {} channels", a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double Norm(std::span<const double> a) {
  double sum = 0;
  for (double x : a) sum += x * x;
  return std::sqrt(sum);
}

// The read part as one more part, whose estimate is its own mass.
UnreadPart AsPart(const ReadPart& read) {
  return {{read.log_mass - read.log_mass_error,
           read.log_mass + read.log_mass_error,
           {StatementKind::kDeterministic}},
          read.log_mass,
          read.out,
          read.out_error,
          read.out_error};
}

bool IsUsable(const UnreadPart& part) {
  // A value norm finds NaN and infinity in any channel.
  return part.log_mass.statement.standing != Standing::kNotFinite &&
         part.log_mass.lo <= part.log_mass.hi && part.log_estimate < kInfinity &&
         part.value_error >= 0 && part.value_radius >= 0 && std::isfinite(Norm(part.value_mean));
}

Statement StatementOf(const ReadPart& read, std::span<const UnreadPart> parts) {
  Statement statement{StatementKind::kExact};
  if (read.log_mass_error > 0 || read.out_error > 0) statement.kind = StatementKind::kDeterministic;
  if (!IsUsable(AsPart(read))) statement.standing = Standing::kNotFinite;
  for (const UnreadPart& part : parts) {
    Statement of_part = part.log_mass.statement;
    if (!IsUsable(part)) of_part.standing = Standing::kNotFinite;
    // One part without upper bound does not make the whole vacuous; the result decides.
    if (of_part.standing == Standing::kVacuous) of_part.standing = Standing::kInformative;
    statement = Both(statement, of_part);
  }
  return statement;
}

double LargestLogMass(const ReadPart& read, std::span<const UnreadPart> parts) {
  double largest = read.log_mass + read.log_mass_error;
  for (const UnreadPart& part : parts) largest = std::max(largest, part.log_mass.hi);
  return largest;
}

// A vertex has every term at the end with the larger error − λ·mass; λ = −inf has every mass at its
// largest. A tie up to rounding takes the low end: if the maximum lies above λ by more than
// rounding, such a term is low there. (Masses differ by hundreds of orders of magnitude: after the
// first round λ is the ratio of the one page that dominates, and all others hide in its rounding.)
bool TakesHigh(const Term& term, double lambda) {
  if (lambda == -kInfinity) return true;
  constexpr double kTie = 1e-12;
  const double gain = (term.error_hi - term.error_lo) - lambda * (term.mass_hi - term.mass_lo);
  return gain > kTie * (term.error_hi + lambda * term.mass_hi);
}

struct Maximum {
  double ratio = 0;
  double lambda = -kInfinity;  // of the vertex
  double mass = 1;             // there
};

// max Σ error / Σ mass over the vertices, by Dinkelbach: λ is the value so far, until it no longer
// grows. Starts where every mass is largest, so that the denominator is at least one. Every term
// changes to its low end at most once, which bounds the rounds; in practice they are under ten.
Maximum MaximizeRatio(std::span<const Term> terms) {
  Maximum best;
  double lambda = -kInfinity;
  for (size_t round = 0; round < terms.size() + 3; ++round) {
    double error = 0;
    double mass = 0;
    for (const Term& term : terms) {
      const bool high = TakesHigh(term, lambda);
      error += high ? term.error_hi : term.error_lo;
      mass += high ? term.mass_hi : term.mass_lo;
    }
    const double ratio = error == 0 ? 0 : error / mass;
    if (round > 0 && !(ratio > best.ratio)) return best;
    best = {ratio, lambda, mass};
    lambda = ratio;
  }
  // Rounding alone could lead here; unfinished, the iteration comes from below and is no bound.
  return {kInfinity, lambda, best.mass};
}

void WriteContributions(std::span<const Term> terms, const Maximum& maximum,
                        std::span<double> contributions) {
  for (size_t p = 0; p < contributions.size(); ++p) {
    const Term& term = terms[p];
    const double error = TakesHigh(term, maximum.lambda) ? term.error_hi : term.error_lo;
    contributions[p] = error == 0 ? 0 : error / maximum.mass;
  }
}

// What rounding of outputs and norms can hide, and the largest value norm may amplify.
double ValueRounding(const ReadPart& read, std::span<const UnreadPart> parts) {
  double largest = Norm(read.out);
  for (const UnreadPart& part : parts) largest = std::max(largest, Norm(part.value_mean));
  return 8 * static_cast<double>(read.out.size() + parts.size() + 8) * kEpsilon * largest;
}

// Where a part has no upper bound of its mass, no finite maximum exists, and that part is in the
// way.
void BlameUnbounded(std::span<const UnreadPart> parts, std::span<double> contributions) {
  for (size_t p = 0; p < contributions.size(); ++p) {
    contributions[p] = parts[p].log_mass.hi == kInfinity ? kInfinity : 0;
  }
}

// The error that is possible whatever the masses are.
double TrivialBound(const ReadPart& read, std::span<const UnreadPart> parts,
                    std::span<const double> output) {
  double bound = std::isfinite(read.log_mass) ? Distance(read.out, output) + read.out_error : 0;
  for (const UnreadPart& part : parts) {
    bound = std::max(bound, Distance(part.value_mean, output) + part.value_radius);
  }
  return bound + ValueRounding(read, parts);
}

template <typename ErrorOfMass>
double MaximizeError(const ReadPart& read, std::span<const UnreadPart> parts, double log_scale,
                     BoundScratch& scratch, std::span<double> contributions,
                     const ErrorOfMass& error_of_mass) {
  scratch.terms.clear();
  const auto add = [&](const UnreadPart& part) {
    // What would underflow is rounded outward: next to intervals that reach over a thousand nats,
    // it may still be all there is.
    double lo = std::exp(part.log_mass.lo - log_scale);
    if (lo < kSmallestMass) lo = 0;
    double hi = std::max(std::exp(part.log_mass.hi - log_scale), kSmallestMass);
    if (part.log_mass.hi == -kInfinity) hi = 0;
    scratch.terms.push_back({lo, hi, error_of_mass(part, lo), error_of_mass(part, hi)});
  };
  for (const UnreadPart& part : parts) add(part);
  add(AsPart(read));
  const Maximum maximum = MaximizeRatio(scratch.terms);
  WriteContributions(scratch.terms, maximum, contributions);
  return maximum.ratio * (1 + 1e-10);  // ties, and sums of many terms
}

// Sets the bound, and the statement's standing by what is trivial.
void Conclude(double bound, double trivial, ErrorBound& result) {
  result.bound = std::min(bound, trivial);
  if (!(bound < trivial)) result.statement.standing = Standing::kVacuous;
  if (!std::isfinite(result.bound)) {
    result.bound = kInfinity;
    result.statement.standing =
        std::isnan(bound) || std::isnan(trivial) ? Standing::kNotFinite : Standing::kVacuous;
  }
}

// True if the result is settled before any maximisation.
bool SettleSimpleCases(const ReadPart& read, std::span<const UnreadPart> parts,
                       std::span<double> contributions, ErrorBound& result) {
  WINNOW_CHECK(contributions.empty() || contributions.size() == parts.size());
  std::fill(contributions.begin(), contributions.end(), 0.0);
  result.statement = StatementOf(read, parts);
  if (result.statement.standing == Standing::kNotFinite) {
    result.bound = kInfinity;
    return true;
  }
  if (!parts.empty()) return false;
  result.bound = read.out_error;
  return true;
}

// 1/(1 + e^{read − unread})
double Share(double log_unread, double log_read) {
  if (log_unread == -kInfinity) return 0;
  return 1 / (1 + std::exp(log_read - log_unread));
}

}  // namespace

UnreadPart SummaryPart(std::span<const double> q, const PageSummaryView& page) {
  const LogitShape shape = ShapeOfLogits(q, page);
  UnreadPart part;
  part.log_mass = BoundLogMass(shape);
  part.log_estimate = std::clamp(CumulantLogMass(q, page), part.log_mass.lo, part.log_mass.hi);
  part.value_mean = page.value_mean;
  part.value_error = BoundValueError(shape, page);
  part.value_radius = page.value_radius + page.value_mean_error;
  return part;
}

ShareInterval BoundShare(const LogInterval& read, const LogInterval& unread) {
  ShareInterval share;
  share.statement = Both(read.statement, unread.statement);
  if (share.statement.standing == Standing::kNotFinite) return share;
  constexpr double kSlack = 16 * kEpsilon;
  if (read.hi == -kInfinity && unread.hi > -kInfinity) {
    share.lo = 1;  // nothing was read and something was not
  } else {
    share.lo = Share(unread.lo, read.hi) * (1 - kSlack);
    share.hi = unread.hi == kInfinity ? 1 : std::min(1.0, Share(unread.hi, read.lo) * (1 + kSlack));
  }
  // A mass without upper bound may still have a large lower one: the width decides.
  share.statement.standing =
      share.hi - share.lo >= kVacuousShareWidth ? Standing::kVacuous : Standing::kInformative;
  return share;
}

ShareInterval BoundUnreadShare(const ReadPart& read, std::span<const UnreadPart> parts) {
  LogInterval unread = LogInterval::Empty();
  for (const UnreadPart& part : parts) unread.Add(part.log_mass);
  ShareInterval share = BoundShare(AsPart(read).log_mass, unread);
  const Statement statement = StatementOf(read, parts);
  if (statement.standing == Standing::kNotFinite) return {0, 1, statement};
  share.statement.kind = statement.kind;
  share.statement.delta = statement.delta;
  return share;
}

ErrorBound BoundDropped(const ReadPart& read, std::span<const UnreadPart> parts,
                        BoundScratch& scratch, std::span<double> contributions) {
  ErrorBound result;
  if (SettleSimpleCases(read, parts, contributions, result)) return result;
  const double trivial = TrivialBound(read, parts, read.out);
  const double log_scale = LargestLogMass(read, parts);
  if (log_scale == kInfinity || log_scale == -kInfinity) {
    BlameUnbounded(parts, contributions);
    Conclude(kInfinity, trivial, result);
    return result;
  }
  const double bound = MaximizeError(
      read, parts, log_scale, scratch, contributions, [&](const UnreadPart& part, double mass) {
        return mass == 0 ? 0 : mass * (Distance(part.value_mean, read.out) + part.value_error);
      });
  Conclude(bound + ValueRounding(read, parts), trivial, result);
  return result;
}

void CompleteOutput(const ReadPart& read, std::span<const UnreadPart> parts,
                    std::span<double> out) {
  WINNOW_CHECK(out.size() == read.out.size(), "{} and {} channels", out.size(), read.out.size());
  std::fill(out.begin(), out.end(), 0.0);
  double top = read.log_mass;
  for (const UnreadPart& part : parts) top = std::max(top, part.log_estimate);
  if (top == -kInfinity) return;
  double total = 0;
  const auto add = [&](double log_mass, std::span<const double> value) {
    const double mass = std::exp(log_mass - top);
    total += mass;
    for (size_t c = 0; c < out.size(); ++c) out[c] += mass * value[c];
  };
  add(read.log_mass, read.out);
  for (const UnreadPart& part : parts) {
    WINNOW_CHECK(part.value_mean.size() == out.size());
    add(part.log_estimate, part.value_mean);
  }
  for (double& x : out) x /= total;
}

CompletedBound BoundCompleted(const ReadPart& read, std::span<const UnreadPart> parts,
                              std::span<const double> completed, BoundScratch& scratch,
                              std::span<double> contributions) {
  CompletedBound result;
  if (SettleSimpleCases(read, parts, contributions, result)) {
    result.by_masses = result.by_values = result.bound;
    return result;
  }
  const double trivial = TrivialBound(read, parts, completed);
  const double log_scale = LargestLogMass(read, parts);
  if (log_scale == kInfinity || log_scale == -kInfinity) {
    result.by_masses = kInfinity;
    result.by_values = trivial;
    BlameUnbounded(parts, contributions);
    Conclude(kInfinity, trivial, result);
    return result;
  }
  // ô is off by its rounding, which A multiplies by Ẑ/Z; where an estimate dwarfs what is there,
  // that is not small.
  const double rounding = ValueRounding(read, parts);
  const auto distance = [&](const UnreadPart& part) {
    return Distance(part.value_mean, completed) + rounding;
  };
  result.by_values = rounding + MaximizeError(read, parts, log_scale, scratch, {},
                                              [&](const UnreadPart& part, double mass) {
                                                if (mass == 0) return 0.0;
                                                return mass * (distance(part) + part.value_error);
                                              });
  result.by_masses =
      rounding + MaximizeError(read, parts, log_scale, scratch, contributions,
                               [&](const UnreadPart& part, double mass) {
                                 const double estimate = std::exp(part.log_estimate - log_scale);
                                 const double missed = std::abs(mass - estimate) * distance(part);
                                 return mass == 0 ? missed : mass * part.value_error + missed;
                               });
  Conclude(std::min(result.by_masses, result.by_values), trivial, result);
  return result;
}

}  // namespace winnow
