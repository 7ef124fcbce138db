// Plain records that the stages of prefill and decode fill. Nobody below `engine` formats or sums
// them.
#pragma once

#include <chrono>
#include <cstdint>

namespace winnow {

// What one attention call read, and what reading everything that is resident would have cost.
struct AttentionAccount {
  int64_t tokens_read = 0;      // summed over layers and sequences
  int64_t tokens_resident = 0;  // likewise
  int64_t bytes_read = 0;       // keys and values, all KV heads
  int64_t bytes_dense = 0;

  AttentionAccount& operator+=(const AttentionAccount& other) {
    tokens_read += other.tokens_read;
    tokens_resident += other.tokens_resident;
    bytes_read += other.bytes_read;
    bytes_dense += other.bytes_dense;
    return *this;
  }
};

// Seconds by stage of a step; the stages' own timers.
struct StageSeconds {
  double embed = 0;
  double attention_input = 0;  // norm, QKV, rope
  double kv_append = 0;
  double attention = 0;
  double attention_output = 0;  // output projection, MLP
  double logits = 0;
  double sampling = 0;

  static constexpr double StageSeconds::*kStages[] = {
      &StageSeconds::embed,     &StageSeconds::attention_input,  &StageSeconds::kv_append,
      &StageSeconds::attention, &StageSeconds::attention_output, &StageSeconds::logits,
      &StageSeconds::sampling};

  double total() const {
    double sum = 0;
    for (double StageSeconds::*stage : kStages) sum += this->*stage;
    return sum;
  }
  StageSeconds& operator+=(const StageSeconds& other) {
    for (double StageSeconds::*stage : kStages) this->*stage += other.*stage;
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
