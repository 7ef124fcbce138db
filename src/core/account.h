// Plain records that the stages of prefill and decode fill. Nobody below `engine` formats or sums
// them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

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

// What attention read, and what reading everything that is resident would have cost. Sums over
// layers and sequences; tokens are means over the KV heads, which may read different ones.
struct AttentionAccount {
  int64_t tokens_read = 0;      // exactly
  int64_t tokens_resident = 0;  // likewise
  int64_t bytes_read = 0;       // keys and values, all KV heads, and what selected and estimated
  int64_t bytes_dense = 0;
  int64_t bytes_scanned = 0;    // of bytes_read: summaries and sketches of keys
  int64_t bytes_estimated = 0;  // of bytes_read: what stood for unread tokens

  int64_t layers_dense = 0;   // layer-steps that read everything without asking a selector
  int64_t layers_sparse = 0;  // the others

  // Of sparse layer-steps, by query head: shares of the partition sum that were read exactly,
  // estimated, and dropped. They add up to mass_heads where the selector estimates mass.
  double mass_exact = 0;
  double mass_estimated = 0;
  double mass_dropped = 0;
  double mass_dropped_max = 0;  // the largest
  int64_t mass_heads = 0;

  // By KV head of sparse layer-steps.
  int64_t widened = 0;              // read more than the budget: estimated unread mass above tol
  int64_t fallback_mass = 0;        // read everything: widening did not do
  int64_t fallback_not_finite = 0;  // read everything: a score was not finite

  SolverAccount solver;  // no mass is accounted for where it solved anything

  AttentionAccount& operator+=(const AttentionAccount& other) {
    tokens_read += other.tokens_read;
    tokens_resident += other.tokens_resident;
    bytes_read += other.bytes_read;
    bytes_dense += other.bytes_dense;
    bytes_scanned += other.bytes_scanned;
    bytes_estimated += other.bytes_estimated;
    layers_dense += other.layers_dense;
    layers_sparse += other.layers_sparse;
    mass_exact += other.mass_exact;
    mass_estimated += other.mass_estimated;
    mass_dropped += other.mass_dropped;
    mass_dropped_max = std::max(mass_dropped_max, other.mass_dropped_max);
    mass_heads += other.mass_heads;
    widened += other.widened;
    fallback_mass += other.fallback_mass;
    fallback_not_finite += other.fallback_not_finite;
    solver += other.solver;
    return *this;
  }
};

// Seconds by stage of a step; the stages' own timers.
struct StageSeconds {
  double embed = 0;
  double attention_input = 0;  // norm, QKV, rope
  double kv_append = 0;
  double score = 0;             // sparse decode: masses of pages
  double select = 0;            // which of them are read
  double attention = 0;         // reading them, or everything
  double solve = 0;             // weights by another solver than softmax
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
                                      {"score", &StageSeconds::score},
                                      {"select", &StageSeconds::select},
                                      {"attention", &StageSeconds::attention},
                                      {"solve", &StageSeconds::solve},
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

}  // namespace winnow
