// How far attention over what was read, alone or completed by page estimates, can be from attention
// over everything.
//
// Z_E and o_E are mass and output of what was read; every unread page p has a mass Z_p in an
// interval and an output within ε_p of its mean value v̄_p. Then, exactly,
//   o − o_E = (1/Z)·Σ Z_p(o_p − o_E)                                                 dropped
//   o − ô = (1/Z)·Σ [Z_p(o_p − v̄_p) + (Z_p − Ẑ_p)(v̄_p − ô)]                         completed, A
//         = (1/Z)·[Z_E(o_E − ô) + Σ Z_p(o_p − ô)]                                    completed, B
// and the largest norm over all masses in their intervals is at a vertex, found by Dinkelbach's
// iteration.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "policy/certify/mgf_bounds.h"
#include "policy/certify/statement.h"

namespace winnow {

// What was read exactly. Engine kernels in float32 say by how much they may be off.
struct ReadPart {
  double log_mass = -std::numeric_limits<double>::infinity();  // log Z_E; -inf: nothing was read
  std::span<const double> out;                                 // o_E [E], zeros if nothing was read
  double log_mass_error = 0;                                   // >= |log_mass − log Z_E|
  double out_error = 0;                                        // >= ‖out − o_E‖
};

// A page (or a token, or any set) that was not read.
struct UnreadPart {
  LogInterval log_mass;     // of log Z_p, with the kind of statement it is
  double log_estimate = 0;  // log Ẑ_p, of whatever estimator; need not be in the interval
  std::span<const double> value_mean;  // [E] the value that stands for the part: v̄_p
  double value_error = 0;              // ε_p >= ‖o_p − value_mean‖
  double value_radius = 0;             // >= the same whatever the logits: says what is vacuous
};

// What the summary of a page says of it under q, with log Ẑ_p the cumulant estimate clipped to the
// interval. Refers to the summary's mean value.
UnreadPart SummaryPart(std::span<const double> q, const PageSummaryView& page);

// An interval of a share of Z; of a width of kVacuousShareWidth or more it is called vacuous.
inline constexpr double kVacuousShareWidth = 0.5;
struct ShareInterval {
  double lo = 0;
  double hi = 1;
  Statement statement;
};
// Share of the unread mass in all, from intervals of log Z_E and of the log of the unread mass.
ShareInterval BoundShare(const LogInterval& read, const LogInterval& unread);
// The same from parts: [L/(Z_E + L), U/(Z_E + U)] with the sums L and U of the
// intervals' ends.
ShareInterval BoundUnreadShare(const ReadPart& read, std::span<const UnreadPart> parts);

// Kept between calls so that bounds allocate only when there are more parts than ever before.
struct BoundScratch {
  struct Term {
    double mass_lo, mass_hi;    // scaled
    double error_lo, error_hi;  // the term's numerator at either mass
  };
  std::vector<Term> terms;
  std::vector<double> distances;
  std::vector<double> completed;
};

// ‖a‖, summed in lanes.
double Norm(std::span<const double> a);

struct ErrorBound {
  double bound = 0;  // of the Euclidean norm; +inf if not finite
  // Exact where nothing is unread; vacuous where the values alone, without any logits, say as much.
  Statement statement;
};

// ‖o − o_E‖. `contributions` [parts] or empty: each part's term of the maximum.
ErrorBound BoundDropped(const ReadPart& read, std::span<const UnreadPart> parts,
                        BoundScratch& scratch, std::span<double> contributions = {});

// ô = (N_E + Σ Ẑ_p·v̄_p)/(Z_E + Σ Ẑ_p) into out [E]; zeros if there is no mass at all.
void CompleteOutput(const ReadPart& read, std::span<const UnreadPart> parts, std::span<double> out);

struct CompletedBound : ErrorBound {
  double by_masses = 0;  // A
  double by_values = 0;  // B; `bound` is the smaller
};
// ‖o − ô‖ for the ô that `CompleteOutput` makes of the same arguments. (An output that differs from
// it, such as a float32 kernel's, is off by the distance on top.) `contributions` [parts] or empty:
// terms of A, which reading the part would take away.
CompletedBound BoundCompleted(const ReadPart& read, std::span<const UnreadPart> parts,
                              std::span<const double> completed, BoundScratch& scratch,
                              std::span<double> contributions = {});

// ‖o − ô‖ for any ô [E], whoever made it of whatever: the smallest of B, which asks nothing of ô;
// of A for the completion by the parts' estimates, plus how far that is from ô; and of the same as
// B with all unread parts taken for one whose mass has `share` of all. The statement is that of the
// parts, and of the share where that decides.
ErrorBound BoundOutput(const ReadPart& read, std::span<const UnreadPart> parts,
                       const ShareInterval& share, std::span<const double> output,
                       BoundScratch& scratch);

}  // namespace winnow
