// What pruning in mid-prefill can save before it runs, from the cost of a layer as a function of
// its tokens (EntroPrefill 8.1), and the collision sum of one attention row while its scores stream
// by.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace winnow {

// F(T) = a·T + b·T²: projections and MLP, and attention. Any unit (operations, seconds) that all
// layers and the auxiliary cost share.
struct LayerCost {
  double linear = 0;     // a >= 0
  double quadratic = 0;  // b >= 0

  double At(double tokens) const { return (linear + quadratic * tokens) * tokens; }
  bool operator==(const LayerCost&) const = default;
};

struct PruningPlan {
  double tokens = 0;     // T
  double kept = 0;       // T' <= T
  int64_t accepted = 0;  // l*: layers 1..l* see all tokens
  double auxiliary = 0;  // F_aux: scoring, audit, compaction
};

struct PruningCost {
  double full = 0;          // Σ F_l(T)
  double shallow = 0;       // of it layers 1..l*
  double deep = 0;          // layers above, Σ F_l(T')
  double pruned = 0;        // (31): shallow + deep + F_aux
  double deep_removed = 0;  // what the layers above l* no longer do
  double saving = 0;        // deep_removed − F_aux

  // (31): what is no longer done exceeds what is done in addition.
  bool pays() const { return saving > 0; }
};
// layers [L]. CHECKs 0 <= T' <= T and 0 <= l* <= L.
PruningCost ComputePruningCost(std::span<const LayerCost> layers, const PruningPlan& plan);

// The largest T' (not rounded) below which the plan pays, whatever its own T'; negative if none
// does, as where F_aux is all that the layers above l* cost. 0 cost above l* gives -infinity.
double BreakEvenTokens(std::span<const LayerCost> layers, const PruningPlan& plan);

// (32): the saved share of equal layers before F_aux, and the ends between which it lies.
struct IdealSaving {
  double share = 0;
  double low = 0;   // (1 − l*/L)(1 − ξ): all linear
  double high = 0;  // (1 − l*/L)(1 − ξ²): all quadratic
};
// `kept_share` ξ = T'/T in [0, 1]. The share is NaN where a layer costs nothing.
IdealSaving ComputeIdealSaving(const LayerCost& layer, double tokens, double kept_share,
                               int64_t accepted, int64_t layers);

// (33): Σ_j A_j² of one row from its scores in any tiling. Not of rows averaged before squaring:
// these have cross products.
class OnlineCollision {
 public:
  void Add(std::span<const double> scores);

  double max() const { return max_; }          // m; -inf before the first finite score
  double sum() const { return sum_; }          // ℓ = Σ exp(z − m)
  double squares() const { return squares_; }  // s = Σ exp(2(z − m))
  double Collision() const;                    // s/ℓ²; NaN while there is no mass

 private:
  double max_ = -std::numeric_limits<double>::infinity();
  double sum_ = 0;
  double squares_ = 0;
};

}  // namespace winnow
