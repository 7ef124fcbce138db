// The mass of unread pages from a sample of their tokens, with the page estimates as control
// variate and the summaries' range of logits as the range of an empirical Bernstein bound.
//
// Pages are drawn in proportion to the width n·(e^{hi} − e^{lo}) of what they can hold, tokens of a
// page evenly, with replacement. So every draw's deviation from the estimate, weighted to be
// unbiased, has the same range, and pages that are well known are left alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/rng.h"
#include "policy/certify/mgf_bounds.h"
#include "policy/certify/statement.h"

namespace winnow {

struct SampleStratum {
  int64_t n = 0;                      // tokens, >= 1
  double logit_lo = 0, logit_hi = 0;  // around every token's logit, the kernel's rounding included
  double log_estimate = 0;            // log Ẑ_p; clipped to the range
  LogInterval log_mass;               // sound without a sample
};

// The stratum of a page whose estimate is log Ẑ_p; `logit_error` is the kernel's rounding.
SampleStratum StratumOf(const LogitShape& shape, double log_estimate, double logit_error);

struct SampleDraw {
  int64_t stratum = 0;
  int64_t token = 0;  // of the stratum
};

struct SampledMass {
  LogInterval log_mass;     // log Σ Z_p
  double log_estimate = 0;  // unbiased before the log; in the interval
};

class SamplePlan {
 public:
  // Ranges that are not finite make every result `not finite`.
  explicit SamplePlan(std::span<const SampleStratum> strata);

  // False if the ranges leave nothing to find out (or are not finite): do not draw then.
  bool NeedsSample() const { return width_ > 0; }
  // Independent of all draws before, given the generator.
  SampleDraw Draw(Rng& rng) const;

  // logits [m] of draws [m] of `Draw`, which were fixed before any logit was seen; delta in (0, 1).
  // With probability 1 − delta over the draws the interval holds (Maurer and Pontil 2009, theorem
  // 4, on both sides), cut to what the summaries say for certain: `statistical`, or `deterministic`
  // where they say as much at both ends, as with fewer than two draws. Not finite if a logit is
  // not, or lies outside of its range by more than a kernel's rounding: then the summary is of
  // other tokens.
  SampledMass Bound(std::span<const SampleDraw> draws, std::span<const double> logits,
                    double delta) const;
  // The same by the normal approximation: `asymptotic`, no bound.
  SampledMass Asymptotic(std::span<const SampleDraw> draws, std::span<const double> logits,
                         double delta) const;

 private:
  struct Moments {
    double mean = 0;      // of (e^s − ẑ)/(e^{hi} − e^{lo})
    double variance = 0;  // unbiased
    bool finite = true;
  };
  Moments MomentsOf(std::span<const SampleDraw> draws, std::span<const double> logits) const;
  // The interval of half width `half` around the mean, in the log domain.
  SampledMass Finish(const Moments& moments, double half, StatementKind kind, double delta) const;
  LogInterval Certain() const;

  std::vector<SampleStratum> strata_;
  std::vector<double> cumulative_;  // of the widths, scaled by exp(-log_scale_)
  double log_scale_ = 0;
  double width_ = 0;     // sum of the widths, scaled
  double estimate_ = 0;  // Σ Ẑ_p, scaled
  double range_ = 0;     // of what is averaged
  bool finite_ = true;
};

}  // namespace winnow
