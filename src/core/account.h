// Plain records that the stages of prefill and decode fill. Nobody below `engine` formats or sums
// them.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace winnow {

// What solvers other than softmax did, by query head of layer-steps. The largest certificates say
// how far from its optimum a head's readout Σ α_j u_j of keys, or of values, may be.
struct SolverAccount {
  int64_t problems = 0;
  int64_t candidates = 0;  // summed, as iterations are
  int64_t iterations = 0;
  int64_t iterations_max = 0;
  int64_t converged = 0;
  int64_t not_finite = 0;         // of which what follows says nothing
  double gap_max = 0;             // duality gap
  double distance_max = 0;        // √g, or √(2G) of the entropic projection
  double value_distance_max = 0;  // of the entropic one: rad(V)·√(2G/ε)
  double eps_min = 0;             // ε that was solved for; 0: the plain projection
  double eps_max = 0;

  SolverAccount& operator+=(const SolverAccount& other) {
    const bool had_eps = problems > not_finite;
    const bool has_eps = other.problems > other.not_finite;
    if (has_eps) eps_min = had_eps ? std::min(eps_min, other.eps_min) : other.eps_min;
    eps_max = std::max(eps_max, other.eps_max);
    problems += other.problems;
    candidates += other.candidates;
    iterations += other.iterations;
    iterations_max = std::max(iterations_max, other.iterations_max);
    converged += other.converged;
    not_finite += other.not_finite;
    gap_max = std::max(gap_max, other.gap_max);
    distance_max = std::max(distance_max, other.distance_max);
    value_distance_max = std::max(value_distance_max, other.value_distance_max);
    return *this;
  }
};

// Counts by size: [0, 1e-6), then ten for each power of ten up to 10^kTop, the last with all above.
template <int kTop>
struct DecadeCounts {
  static constexpr int kBins = 10 * (6 + kTop) + 2;
  std::array<int64_t, kBins> bins{};

  void Add(double x) {
    const double bin = x < 1e-6 ? 0 : 1 + std::floor(10 * (std::log10(x) + 6));
    ++bins[static_cast<size_t>(std::clamp(bin, 0.0, kBins - 1.0))];
  }
  // What at least this share of the `n` that were added, none above `max`, does not exceed; 0 for
  // none.
  double Quantile(double share, int64_t n, double max) const {
    double needed = share * static_cast<double>(n);
    for (int bin = 0; bin < kBins - 1; ++bin) {
      needed -= static_cast<double>(bins[bin]);
      if (needed <= 0) return std::min(max, std::pow(10.0, bin / 10.0 - 6));
    }
    return max;
  }
  DecadeCounts& operator+=(const DecadeCounts& other) {
    for (int bin = 0; bin < kBins; ++bin) bins[bin] += other.bins[bin];
    return *this;
  }
};

// Statements by their kind (policy/certify/statement.h: exact to estimate).
struct KindCounts {
  static constexpr int kKinds = 5;

  std::array<int64_t, kKinds> by_kind{};
  std::array<int64_t, kKinds> vacuous{};  // of by_kind: they say no more than what always holds
  int64_t not_finite = 0;                 // nothing could be stated

  int64_t AllVacuous() const { return std::accumulate(vacuous.begin(), vacuous.end(), int64_t{0}); }
  KindCounts& operator+=(const KindCounts& other) {
    for (int kind = 0; kind < kKinds; ++kind) {
      by_kind[kind] += other.by_kind[kind];
      vacuous[kind] += other.vacuous[kind];
    }
    not_finite += other.not_finite;
    return *this;
  }
};

// What was stated of the unread shares of query heads of sparse layer-steps.
struct StatementAccount : KindCounts {
  // Of the intervals: all but estimates.
  int64_t intervals = 0;
  double lo = 0;  // sum of their lower ends,
  double hi = 0;  // and of the upper ones
  double hi_max = 0;
  double width_max = 0;
  DecadeCounts<0> widths;
  // Intervals that the selector's estimate lies outside of: the estimate is wrong there.
  int64_t estimate_outside = 0;

  void AddInterval(double interval_lo, double interval_hi) {
    const double width = interval_hi - interval_lo;
    ++intervals;
    lo += interval_lo;
    hi += interval_hi;
    hi_max = std::max(hi_max, interval_hi);
    width_max = std::max(width_max, width);
    widths.Add(width);
  }
  // A width that at least this share of the intervals does not exceed; 0 without intervals.
  double WidthQuantile(double share) const { return widths.Quantile(share, intervals, width_max); }
  StatementAccount& operator+=(const StatementAccount& other) {
    KindCounts::operator+=(other);
    intervals += other.intervals;
    lo += other.lo;
    hi += other.hi;
    hi_max = std::max(hi_max, other.hi_max);
    width_max = std::max(width_max, other.width_max);
    widths += other.widths;
    estimate_outside += other.estimate_outside;
    return *this;
  }
};

// Likewise of how far their outputs can be from attention over everything.
struct OutputErrorAccount : KindCounts {
  int64_t bounds = 0;
  double absolute = 0;  // sum of the bounds,
  double relative = 0;  // and of the bounds over the outputs' norms
  double absolute_max = 0;
  double relative_max = 0;
  DecadeCounts<3> relatives;

  void AddBound(double of_norm, double over_norm) {
    ++bounds;
    absolute += of_norm;
    relative += over_norm;
    absolute_max = std::max(absolute_max, of_norm);
    relative_max = std::max(relative_max, over_norm);
    relatives.Add(over_norm);
  }
  double RelativeQuantile(double share) const {
    return relatives.Quantile(share, bounds, relative_max);
  }
  OutputErrorAccount& operator+=(const OutputErrorAccount& other) {
    KindCounts::operator+=(other);
    bounds += other.bounds;
    absolute += other.absolute;
    relative += other.relative;
    absolute_max = std::max(absolute_max, other.absolute_max);
    relative_max = std::max(relative_max, other.relative_max);
    relatives += other.relatives;
    return *this;
  }
};

// One KV head of one layer, over its sparse steps; sums over the query heads of its group.
struct HeadAccount {
  int64_t steps = 0;
  int64_t tokens_read = 0;
  int64_t mass_heads = 0;  // query heads of steps, of which the three masses are sums of shares
  double mass_exact = 0;
  double mass_estimated = 0;
  double mass_dropped = 0;
  int64_t intervals = 0;
  double lo = 0;
  double hi = 0;
  double hi_max = 0;
  int64_t error_bounds = 0;
  double error = 0;  // sum of bounds of the output's error, relative to its norm
  double error_max = 0;
  int64_t widened = 0;  // steps that read more than was asked for,
  int64_t dense = 0;    // or everything

  HeadAccount& operator+=(const HeadAccount& other) {
    steps += other.steps;
    tokens_read += other.tokens_read;
    mass_heads += other.mass_heads;
    mass_exact += other.mass_exact;
    mass_estimated += other.mass_estimated;
    mass_dropped += other.mass_dropped;
    intervals += other.intervals;
    lo += other.lo;
    hi += other.hi;
    hi_max = std::max(hi_max, other.hi_max);
    error_bounds += other.error_bounds;
    error += other.error;
    error_max = std::max(error_max, other.error_max);
    widened += other.widened;
    dense += other.dense;
    return *this;
  }
};

// What attention read, and what reading everything that is resident would have cost. Sums over
// layers and sequences; tokens are means over the KV heads, which may read different ones.
struct AttentionAccount {
  int64_t tokens_read = 0;      // exactly
  int64_t tokens_resident = 0;  // likewise
  int64_t bytes_read = 0;       // keys and values, all KV heads, and what selected and estimated
  int64_t bytes_dense = 0;
  int64_t bytes_scanned = 0;    // of bytes_read: summaries and sketches of keys
  int64_t bytes_estimated = 0;  // of bytes_read: what stood for unread tokens
  int64_t bytes_certified = 0;  // of bytes_read: what bounded their mass

  int64_t layers_dense = 0;   // layer-steps that read everything without asking a selector
  int64_t layers_sparse = 0;  // the others

  // Of sparse layer-steps, by query head: shares of the partition sum that were read exactly,
  // estimated, and dropped. They add up to mass_heads where the selector estimates mass.
  double mass_exact = 0;
  double mass_estimated = 0;
  double mass_dropped = 0;
  double mass_dropped_max = 0;  // the largest
  int64_t mass_heads = 0;

  // Likewise; kinds, bounds.
  StatementAccount statements;
  OutputErrorAccount output_errors;

  // By KV head of sparse layer-steps: what read more than the budget, what read everything, and
  // what was left as it was (fallback=cap), by cause.
  int64_t widened = 0;               // estimated unread mass above tol,
  int64_t widened_certificate = 0;   // its certified upper end above tol,
  int64_t widened_error = 0;         // the certified error of its outputs, a mean, above tol_error
  int64_t fallback_mass = 0;         // everything was read since widening did not do
  int64_t fallback_certificate = 0;  // likewise
  int64_t fallback_error = 0;        // likewise
  int64_t fallback_gap = 0;          // the best scores lie closer than the gap
  int64_t fallback_not_finite = 0;   // a score or a bound was not finite
  int64_t capped_mass = 0;
  int64_t capped_certificate = 0;
  int64_t capped_error = 0;
  int64_t capped_gap = 0;
  // By query head of sparse layer-steps: nothing stood for the unread, since a guard fired.
  int64_t residual_dropped = 0;

  struct Fallback {
    const char* name;  // in records
    int64_t AttentionAccount::*count;
  };
  static const std::array<Fallback, 12>& Fallbacks() {
    static constexpr std::array<Fallback, 12> kFallbacks = {
        {{"widened", &AttentionAccount::widened},
         {"widened_certificate", &AttentionAccount::widened_certificate},
         {"widened_error", &AttentionAccount::widened_error},
         {"fallback_mass", &AttentionAccount::fallback_mass},
         {"fallback_certificate", &AttentionAccount::fallback_certificate},
         {"fallback_error", &AttentionAccount::fallback_error},
         {"fallback_gap", &AttentionAccount::fallback_gap},
         {"fallback_not_finite", &AttentionAccount::fallback_not_finite},
         {"capped_mass", &AttentionAccount::capped_mass},
         {"capped_certificate", &AttentionAccount::capped_certificate},
         {"capped_error", &AttentionAccount::capped_error},
         {"capped_gap", &AttentionAccount::capped_gap}}};
    return kFallbacks;
  }

  // By layer and KV head [L, K], up to the last sparse layer; empty without.
  std::vector<HeadAccount> heads;
  int64_t kv_heads = 0;  // K, if there are any

  // Lets += of `other` do without memory.
  void MakeRoomFor(const AttentionAccount& other) {
    if (heads.size() < other.heads.size()) heads.resize(other.heads.size());
    kv_heads = std::max(kv_heads, other.kv_heads);
  }

  SolverAccount solver;  // no mass is accounted for where it solved anything

  AttentionAccount& operator+=(const AttentionAccount& other) {
    tokens_read += other.tokens_read;
    tokens_resident += other.tokens_resident;
    bytes_read += other.bytes_read;
    bytes_dense += other.bytes_dense;
    bytes_scanned += other.bytes_scanned;
    bytes_estimated += other.bytes_estimated;
    bytes_certified += other.bytes_certified;
    layers_dense += other.layers_dense;
    layers_sparse += other.layers_sparse;
    mass_exact += other.mass_exact;
    mass_estimated += other.mass_estimated;
    mass_dropped += other.mass_dropped;
    mass_dropped_max = std::max(mass_dropped_max, other.mass_dropped_max);
    mass_heads += other.mass_heads;
    statements += other.statements;
    output_errors += other.output_errors;
    residual_dropped += other.residual_dropped;
    solver += other.solver;
    for (const Fallback& fallback : Fallbacks()) this->*fallback.count += other.*fallback.count;
    MakeRoomFor(other);
    for (size_t i = 0; i < other.heads.size(); ++i) heads[i] += other.heads[i];
    return *this;
  }
};

// Seconds by stage of a step; the stages' own timers.
struct StageSeconds {
  double embed = 0;
  double attention_input = 0;  // norm, QKV, rope
  double kv_append = 0;
  double prune = 0;             // observers' rows, scoring, scan and audit of documents' chunks
  double score = 0;             // sparse decode: masses of pages
  double select = 0;            // which of them are read
  double attention = 0;         // reading them, or everything
  double solve = 0;             // weights by another solver than softmax
  double certify = 0;           // bounding the unread mass, and reading more where that asks for it
  double estimate = 0;          // standing for the rest
  double account = 0;           // writing down how much mass went where
  double attention_output = 0;  // output projection, MLP
  double logits = 0;
  double sampling = 0;

  struct Stage {
    const char* name;  // in records
    double StageSeconds::*seconds;
  };
  static constexpr Stage kStages[] = {{"embed", &StageSeconds::embed},
                                      {"attention_input", &StageSeconds::attention_input},
                                      {"kv_append", &StageSeconds::kv_append},
                                      {"prune", &StageSeconds::prune},
                                      {"score", &StageSeconds::score},
                                      {"select", &StageSeconds::select},
                                      {"attention", &StageSeconds::attention},
                                      {"solve", &StageSeconds::solve},
                                      {"certify", &StageSeconds::certify},
                                      {"estimate", &StageSeconds::estimate},
                                      {"account", &StageSeconds::account},
                                      {"attention_output", &StageSeconds::attention_output},
                                      {"logits", &StageSeconds::logits},
                                      {"sampling", &StageSeconds::sampling}};

  double total() const {
    double sum = 0;
    for (const Stage& stage : kStages) sum += this->*stage.seconds;
    return sum;
  }
  StageSeconds& operator+=(const StageSeconds& other) {
    for (const Stage& stage : kStages) this->*stage.seconds += other.*stage.seconds;
    return *this;
  }
};

// Adds the time between construction and destruction to `sink`.
class ScopedTimer {
 public:
  explicit ScopedTimer(double& sink) : sink_(sink), start_(Clock::now()) {}
  ~ScopedTimer() { sink_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sink_;
  Clock::time_point start_;
};

// Runs a stage and adds its time to `sink`.
template <class Stage>
void Timed(double& sink, Stage stage) {
  const ScopedTimer timer(sink);
  stage();
}

}  // namespace winnow
