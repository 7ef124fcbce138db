// Plain records that the stages of prefill and decode fill. Nobody below `engine` formats or sums them.
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
  double attention_input = 0;   // norm, QKV, rope
  double kv_append = 0;
  double attention = 0;
  double attention_output = 0;  // output projection, MLP
  double logits = 0;
  double sampling = 0;

  double total() const {
    return embed + attention_input + kv_append + attention + attention_output + logits + sampling;
  }
  StageSeconds& operator+=(const StageSeconds& o) {
    embed += o.embed;
    attention_input += o.attention_input;
    kv_append += o.kv_append;
    attention += o.attention;
    attention_output += o.attention_output;
    logits += o.logits;
    sampling += o.sampling;
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
