// How far an arm's next-token distributions are from dense's, along the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace winnow {

// log(sum(exp(logits))) of [V] logits, at least one, in double.
double LogSumExp(std::span<const float> logits);

// KL(P || Q) in nats of softmax(p) and softmax(q), both [V], computed in double.
double KlDivergence(std::span<const float> p, std::span<const float> q);

// Logits of one sample along its reference tokens, [n, V].
class LogitTrace {
 public:
  void Append(std::span<const float> row);
  int64_t rows() const {
    return vocabulary_ == 0 ? 0 : static_cast<int64_t>(data_.size()) / vocabulary_;
  }
  std::span<const float> Row(int64_t index) const;

 private:
  int64_t vocabulary_ = 0;
  std::vector<float> data_;
};

// Sums over the positions of one or more samples. All probabilities are the model's own, at
// temperature 1.
struct Fidelity {
  int64_t positions = 0;
  double kl = 0;          // of KL(dense || arm), nats
  int64_t same_top1 = 0;  // positions where both find the same token likeliest
  double nll_dense = 0;   // of -log p(reference token)
  double nll_arm = 0;

  void Add(std::span<const float> dense, std::span<const float> arm, TokenId reference);
  Fidelity& operator+=(const Fidelity& other);

  // Means; there must be a position.
  double MeanKl() const { return kl / static_cast<double>(positions); }
  double Top1Agreement() const {
    return static_cast<double>(same_top1) / static_cast<double>(positions);
  }
  // exp(mean nll_arm - mean nll_dense): above 1 the arm finds the reference tokens less likely.
  double PerplexityRatio() const;
};

}  // namespace winnow
