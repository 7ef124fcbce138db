// Sound intervals of a page's log partition sum log Z_p from its summary.
//
// Z_p = n·e^{q·c}·E e^x, where x = q·(k − c) has mean zero over the page. What the summary says of
// x (range, variance) bounds E e^x: by range alone, by Jensen and the chord, by Bennett.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "policy/certify/statement.h"
#include "policy/certify/summary.h"

namespace winnow {

// An upper bound of log E e^x for all x with mean zero, x <= b and variance <= v (Bennett); with
// v = a·b it is the chord over [−a, b]. b, v >= 0, may be infinite; NaN gives NaN.
double LogMgfUpper(double b, double v);
// A lower bound for all x with mean zero, x >= −a and variance >= v; never below Jensen's 0.
double LogMgfLower(double a, double v);

// What is known of the logits q·k of a page. All but `centre` are outer bounds that include the
// rounding of this computation.
struct LogitShape {
  int64_t n = 0;
  double centre = 0;        // q·mean
  double centre_error = 0;  // >= |centre − q·c|
  double below = 0;         // a: x >= −a
  double above = 0;         // b: x <= b
  double variance_lo = 0;
  double variance_hi = 0;
  double reach = 0;                     // ‖q‖·radius
  double box_below = 0, box_above = 0;  // range of x by the box alone
  bool finite = true;                   // false: q or the summary is not, and nothing holds
};

// q [D], scaled. No allocation.
LogitShape ShapeOfLogits(std::span<const double> q, const PageSummaryView& page);

struct LogInterval {
  double lo = 0;
  double hi = 0;
  // Vacuous if it does not bound from above; not finite: (-inf, +inf).
  Statement statement;

  // Of no mass at all, to add to.
  static LogInterval Empty();
  // The interval of the sum of both masses, rounded outward. One part without upper bound makes the
  // sum vacuous, one that is not finite the sum so.
  void Add(const LogInterval& other);
};

enum class MassBound {
  kRange,         // n·e^{q·c ∓ ‖q‖ρ}
  kBox,           // n·e^{Σ min, Σ max of q_c·box_c}
  kJensenRadius,  // Jensen below, the chord of ±‖q‖ρ above
  kBest,          // everything that is known
};

// log Z_p.
LogInterval BoundLogMass(const LogitShape& shape, MassBound method = MassBound::kBest);

// An estimate, no bound: log n + q·c + ½·Σ q_c²·var_c. Clip it to the interval before use.
double CumulantLogMass(std::span<const double> q, const PageSummaryView& page);

// How far the softmax weights p_i of a page's n tokens can be from equal ones.
struct WeightSpread {
  double variation = 2;                                  // >= Σ |p_i − 1/n|
  double chi = std::numeric_limits<double>::infinity();  // >= √(n·Σ p_i² − 1)
};
WeightSpread SpreadOfWeights(const LogitShape& shape);
// Where no weight exceeds `largest`: k = 1/largest tokens may share all of it, or less even.
WeightSpread SpreadOfWeights(int64_t n, double largest);

// ε_p >= ‖o_p − value_mean‖ by the weights of the page's output o_p = Σ p_i·v_i: the smallest of
// the radius, and of either spread times what it multiplies.
double BoundValueError(const WeightSpread& weights, const PageSummaryView& page);
// The same, where o_p is the page's attention output under these logits.
double BoundValueError(const LogitShape& shape, const PageSummaryView& page);

}  // namespace winnow
