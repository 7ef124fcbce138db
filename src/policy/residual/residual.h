// What stands for the tokens that a decode step did not read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/backbone.h"
#include "policy/params.h"
#include "policy/select/selector.h"

namespace winnow {

// The middle's pages of one KV head of one query that stay unread and those that are read, and the
// shares of all pages, as PageShares had them.
struct UnreadPages {
  std::span<const int32_t> pages;     // ascending; empty: nothing is to be estimated
  std::span<const int32_t> read;      // ascending; with `pages` a run without holes
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

// What an estimate cost and what became of it.
struct ResidualAccount {
  int64_t bytes_read = 0;      // all queries of the step
  int64_t* dropped = nullptr;  // [queries], if not null: query heads that a guard left without
                               // an estimate are added
};

// What an estimator keeps of one sequence from step to step. It follows from the sequence's pages
// (and, where it says so, its prompt), and is checked against them in every step: a sequence may be
// forked, rolled back or started from resident pages at any time.
class ResidualMemory {
 public:
  virtual ~ResidualMemory() = default;
  virtual int64_t bytes() const = 0;
  // Whether it needs queries and keys of every prompt token: then the whole prompt is computed, in
  // order, and nothing of it adopted from resident pages.
  virtual bool sees_prompt() const { return false; }
  virtual void SeePrompt(int /*layer*/, const Qkv& /*qkv*/) {}
};

// The model that an engine runs, for what is trained or calibrated for one.
struct ModelIdentity {
  ModelConfig config;
  std::string path;  // of the file; empty: not from a file
};

// Called once a layer and step. Keeps its scratch; not for several threads.
class ResidualEstimator {
 public:
  virtual ~ResidualEstimator() = default;
  virtual PlaneSet planes() const = 0;
  // Bits of the key sketch whose token weights it needs in step.masses; 0: none.
  virtual int weight_bits() const { return 0; }
  // Once, before the first step. Throws Error(kInput) if its files are not for this model.
  virtual void Bind(const ModelIdentity& /*model*/) {}
  // For LayerQuery::memory; null if it keeps nothing.
  virtual std::unique_ptr<ResidualMemory> NewMemory() const { return nullptr; }
  // A step, in this order: Begin with the number of KV heads of all queries; Plan for each of them,
  // from any thread; Estimate. What Plan was given lives until then.
  virtual void Begin(int64_t n_heads) = 0;
  virtual void Plan(int64_t head, const UnreadPages& unread) = 0;
  virtual void Estimate(const LayerStep& step, ResidualStates states, ResidualAccount* account) = 0;
};

// Null for `none`. Throws Error(kUsage) for an unknown name (nearest offered) or parameter.
// `key_bits`: of the selector's sketch; 0 if it has none.
std::unique_ptr<ResidualEstimator> MakeResidual(std::string_view name, int key_bits,
                                                Params& params);

// One file each, one line in the registry.
std::unique_ptr<ResidualEstimator> MakeSketchResidual(int key_bits, Params& params);
std::unique_ptr<ResidualEstimator> MakeCentroidResidual(int key_bits, Params& params);
std::unique_ptr<ResidualEstimator> MakeCumulantResidual(int key_bits, Params& params);
std::unique_ptr<ResidualEstimator> MakeResaResidual(int key_bits, Params& params);
std::unique_ptr<ResidualEstimator> MakeSampleResidual(int key_bits, Params& params);
std::unique_ptr<ResidualEstimator> MakePhiResidual(int key_bits, Params& params);
std::unique_ptr<ResidualEstimator> MakePhiNoSubResidual(int key_bits, Params& params);

}  // namespace winnow
