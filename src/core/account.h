// Plain records that the stages of prefill and decode fill. Nobody below `engine` formats or sums
// them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace winnow {

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
  // By query head of sparse layer-steps: nothing stood for the unread, since a guard fired.
  int64_t residual_dropped = 0;

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
    residual_dropped += other.residual_dropped;
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
