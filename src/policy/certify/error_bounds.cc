#include "policy/certify/error_bounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

constexpr double kSmallestMass = 1e-290;  // of scaled masses

using Term = BoundScratch::Term;

// In eight sums, which a compiler may put side by side.
template <typename Square>
double SumOfSquares(size_t n, Square square) {
  std::array<double, 8> sums{};
  size_t i = 0;
  for (; i + sums.size() <= n; i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += square(i + lane);
  }
  for (; i < n; ++i) sums[0] += square(i);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

double Distance(std::span<const double> a, std::span<const double> b) {
  WINNOW_CHECK(a.size() == b.size(), "values of {} and {} channels", a.size(), b.size());
  return std::sqrt(SumOfSquares(a.size(), [&](size_t i) { return (a[i] - b[i]) * (a[i] - b[i]); }));
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

// Distances of an output from the parts' values, and last from what was read.
std::span<const double> Distances(const ReadPart& read, std::span<const UnreadPart> parts,
                                  std::span<const double> output, BoundScratch& scratch) {
  scratch.distances.clear();
  for (const UnreadPart& part : parts) {
    scratch.distances.push_back(Distance(part.value_mean, output));
  }
  scratch.distances.push_back(Distance(read.out, output));
  return scratch.distances;
}

// The error that is possible whatever the masses are.
double TrivialBound(const ReadPart& read, std::span<const UnreadPart> parts,
                    std::span<const double> distances, double rounding) {
  double bound = std::isfinite(read.log_mass) ? distances.back() + read.out_error : 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    bound = std::max(bound, distances[p] + parts[p].value_radius);
  }
  return bound + rounding;
}

template <typename ErrorsOfMasses>
double MaximizeError(const ReadPart& read, std::span<const UnreadPart> parts, double log_scale,
                     BoundScratch& scratch, std::span<double> contributions,
                     const ErrorsOfMasses& errors_of_masses) {
  scratch.terms.clear();
  const auto add = [&](size_t p, const UnreadPart& part) {
    // What would underflow is rounded outward: next to intervals that reach over a thousand nats,
    // it may still be all there is.
    double lo = std::exp(part.log_mass.lo - log_scale);
    if (lo < kSmallestMass) lo = 0;
    double hi = std::max(std::exp(part.log_mass.hi - log_scale), kSmallestMass);
    if (part.log_mass.hi == -kInfinity) hi = 0;
    const auto [error_lo, error_hi] = errors_of_masses(p, part, lo, hi);
    scratch.terms.push_back({lo, hi, error_lo, error_hi});
  };
  for (size_t p = 0; p < parts.size(); ++p) add(p, parts[p]);
  add(parts.size(), AsPart(read));
  const Maximum maximum = MaximizeRatio(scratch.terms);
  WriteContributions(scratch.terms, maximum, contributions);
  return maximum.ratio * (1 + 1e-10);  // ties, and sums of many terms
}

// B, and A, of which contributions are; `distances` of the output that they are of. Each is without
// the rounding of the output itself.
double MaximizeByValues(const ReadPart& read, std::span<const UnreadPart> parts, double log_scale,
                        std::span<const double> distances, double rounding, BoundScratch& scratch,
                        std::span<double> contributions) {
  return MaximizeError(read, parts, log_scale, scratch, contributions,
                       [&](size_t p, const UnreadPart& part, double lo, double hi) {
                         const double error = distances[p] + rounding + part.value_error;
                         const auto at = [error](double mass) {
                           return mass == 0 ? 0 : mass * error;
                         };
                         return std::pair(at(lo), at(hi));
                       });
}

double MaximizeByMasses(const ReadPart& read, std::span<const UnreadPart> parts, double log_scale,
                        std::span<const double> distances, double rounding, BoundScratch& scratch,
                        std::span<double> contributions) {
  return MaximizeError(read, parts, log_scale, scratch, contributions,
                       [&](size_t p, const UnreadPart& part, double lo, double hi) {
                         const double estimate = std::exp(part.log_estimate - log_scale);
                         const double distance = distances[p] + rounding;
                         const auto at = [&](double mass) {
                           const double missed = std::abs(mass - estimate) * distance;
                           return mass == 0 ? missed : mass * part.value_error + missed;
                         };
                         return std::pair(at(lo), at(hi));
                       });
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

double Norm(std::span<const double> a) {
  return std::sqrt(SumOfSquares(a.size(), [&](size_t i) { return a[i] * a[i]; }));
}

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
  const std::span<const double> distances = Distances(read, parts, read.out, scratch);
  const double rounding = ValueRounding(read, parts);
  const double trivial = TrivialBound(read, parts, distances, rounding);
  const double log_scale = LargestLogMass(read, parts);
  if (!std::isfinite(log_scale)) {
    BlameUnbounded(parts, contributions);
    Conclude(kInfinity, trivial, result);
    return result;
  }
  const double bound =
      MaximizeByValues(read, parts, log_scale, distances, 0, scratch, contributions);
  Conclude(bound + rounding, trivial, result);
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
  const std::span<const double> distances = Distances(read, parts, completed, scratch);
  const double rounding = ValueRounding(read, parts);
  const double trivial = TrivialBound(read, parts, distances, rounding);
  const double log_scale = LargestLogMass(read, parts);
  if (!std::isfinite(log_scale)) {
    result.by_masses = kInfinity;
    result.by_values = trivial;
    BlameUnbounded(parts, contributions);
    Conclude(kInfinity, trivial, result);
    return result;
  }
  // ô is off by its rounding, which A multiplies by Ẑ/Z; where an estimate dwarfs what is there,
  // that is not small.
  result.by_values =
      rounding + MaximizeByValues(read, parts, log_scale, distances, rounding, scratch, {});
  result.by_masses = rounding + MaximizeByMasses(read, parts, log_scale, distances, rounding,
                                                 scratch, contributions);
  Conclude(std::min(result.by_masses, result.by_values), trivial, result);
  return result;
}

ErrorBound BoundOutput(const ReadPart& read, std::span<const UnreadPart> parts,
                       const ShareInterval& share, std::span<const double> output,
                       BoundScratch& scratch) {
  WINNOW_CHECK(output.size() == read.out.size(), "{} and {} channels", output.size(),
               read.out.size());
  ErrorBound result;
  if (SettleSimpleCases(read, parts, {}, result)) {
    result.bound += parts.empty() ? Distance(read.out, output) : 0;
    return result;
  }
  if (share.statement.standing == Standing::kNotFinite || !std::isfinite(Norm(output))) {
    return {kInfinity, {result.statement.kind, Standing::kNotFinite}};
  }
  const std::span<const double> distances = Distances(read, parts, output, scratch);
  // The output is one more vector whose norm may be the largest.
  const double rounding = ValueRounding(read, parts) +
                          8 * static_cast<double>(output.size() + 8) * kEpsilon * Norm(output);
  const double trivial = TrivialBound(read, parts, distances, rounding);
  double farthest = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    farthest = std::max(farthest, distances[p] + parts[p].value_error);
  }
  const double nearest = std::isfinite(read.log_mass) ? distances.back() + read.out_error : 0;
  const double at = farthest > nearest ? share.hi : share.lo;
  const double by_share = (at * farthest + (1 - at) * nearest) * (1 + 1e-12) + rounding;
  double by_parts = kInfinity;
  const double log_scale = LargestLogMass(read, parts);
  if (std::isfinite(log_scale)) {
    by_parts =
        rounding + MaximizeByValues(read, parts, log_scale, distances, rounding, scratch, {});
    scratch.completed.resize(output.size());
    CompleteOutput(read, parts, scratch.completed);
    const double apart = Distance(scratch.completed, output);
    Distances(read, parts, scratch.completed, scratch);
    const double by_masses =
        rounding + apart +
        MaximizeByMasses(read, parts, log_scale, scratch.distances, rounding, scratch, {});
    by_parts = std::min(by_parts, by_masses);
  }
  if (by_share < by_parts) result.statement = Both(result.statement, share.statement);
  result.statement.standing = Standing::kInformative;
  Conclude(std::min(by_share, by_parts), trivial, result);
  return result;
}

}  // namespace winnow
