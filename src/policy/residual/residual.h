// What stands for the tokens that a decode step did not read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/params.h"
#include "policy/select/selector.h"

namespace winnow {

// The unread pages of one KV head of one query and its pages' shares, as PageShares had them.
struct UnreadPages {
  std::span<const int32_t> pages;     // ascending
  std::span<const float> pooled;      // [n_pages]
  const float* shares = nullptr;      // [R, n_pages]
  const float* log_totals = nullptr;  // [R]
};

// The attention states of the unread part, one query head each: what is merged with the exact part
// under one normaliser, y = (N_E + N̂)/(Z_E + Ẑ).
struct ResidualStates {
  float* out = nullptr;       // [queries, H, D]
  float* log_mass = nullptr;  // [queries, H]
};

// Called once a layer and step. Keeps its scratch; not for several threads.
class ResidualEstimator {
 public:
  virtual ~ResidualEstimator() = default;
  virtual PlaneSet planes() const = 0;
  // Bits of the key sketch whose token weights it needs in step.masses; 0: none.
  virtual int weight_bits() const { return 0; }
  // A step, in this order: Begin with the number of KV heads of all queries; Plan for each of them,
  // from any thread; Estimate, which adds the bytes read to `bytes_read`. What Plan was given lives
  // until then.
  virtual void Begin(int64_t n_heads) = 0;
  virtual void Plan(int64_t head, const UnreadPages& unread) = 0;
  virtual void Estimate(const LayerStep& step, ResidualStates states, int64_t* bytes_read) = 0;
};

// Null for `none`. Throws Error(kUsage) for an unknown name (nearest offered) or parameter.
// `key_bits`: of the selector's sketch; 0 if it has none.
std::unique_ptr<ResidualEstimator> MakeResidual(std::string_view name, int key_bits,
                                                Params& params);
std::vector<std::string> ResidualNames();

// One file each, one line in the registry.
std::unique_ptr<ResidualEstimator> MakeSketchResidual(int key_bits, Params& params);
std::unique_ptr<ResidualEstimator> MakeCentroidResidual(int key_bits, Params& params);

}  // namespace winnow
