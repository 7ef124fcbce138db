// Time and certificates of Vashista's routing over a grid of its parameters (Vashista 9.1, 9.2,
// F.1): one layer-step of a synthetic shape through the engine's own sparse decode, in turn with
// dense.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/synthetic_layers.h"
#include "core/dtype.h"
#include "core/function_ref.h"
#include "core/parallel.h"
#include "model/synthetic.h"

namespace winnow {

// Each combination is a cell; softmax has no iterations. A list of one is not swept. What is not
// named has the arm's own default.
struct SweepOptions {
  std::vector<int64_t> tokens = {8192, 32768, 131072};
  std::vector<int64_t> pages = {8};         // P
  std::vector<int64_t> candidates = {128};  // Kc; 0: all tokens of the pages
  std::vector<std::string> solvers = {"softmax"};
  std::vector<int64_t> iterations = {12};
  SyntheticHeads heads;
  DType dtype = DType::kF16;
  int n_layers = 8;
  int repetitions = 5;
};

// What SetSweep knows, for help texts: P, Kc, solver, iterations.
std::vector<std::string> SweepNames();

// Sweeps over the parameters of `list`: each a name, for F.1's values (and every solver), or
// NAME=VALUE:VALUE:…; capitals do not matter. Where iterations are swept and no solver is named,
// the solver is eg. Throws Error(kUsage) for an empty list, an unknown name (nearest offered) or
// solver, a value out of range, and what is there twice.
void SetSweep(const std::vector<std::string>& list, SweepOptions* options);

// What the solver's certificates say of the query heads of all layers.
struct SweepCertificate {
  double gap = 0;                        // the largest duality gap
  double distance = 0;                   // the largest distance of the readout of keys
  std::optional<double> value_distance;  // likewise of values; of eg alone
  double iterations = 0;                 // mean
  double converged = 0;                  // share
};

struct SweepRow {
  int64_t tokens = 0;
  int64_t pages = 0;
  int64_t candidates = 0;
  std::string solver;
  std::optional<int64_t> iterations;  // at most; none with softmax
  std::string arm;
  double dense_ms = 0;  // a layer-step, medians
  double sparse_ms = 0;
  // Shares of the sparse layer-step by the stages' own timers, means; they add up to 1.
  double routing = 0;  // scoring pages and choosing among them
  double solver_share = 0;
  double kernel = 0;       // scoring and reading tokens
  double other = 0;        // the account, and what no timer covers
  int64_t bytes_read = 0;  // of keys, values and summaries, a layer-step
  int64_t bytes_dense = 0;
  double tokens_read = 0;                       // keys and values both; a mean over KV heads
  std::optional<SweepCertificate> certificate;  // none with softmax

  double ratio() const { return dense_ms / sparse_ms; }
};

struct SweepRun {
  std::vector<SweepRow> rows;  // in the order of tokens, pages, candidates, solvers, iterations
  bool complete = true;        // false: it was told to stop
};

// Cells that the options make.
int64_t SweepCells(const SweepOptions& options);

// Throws Error(kUsage) for a number out of range, pages beyond a context and heads that `dtype`
// cannot hold, Error(kResource), with what is needed, where the longest context does not fit into
// memory. RunSweep begins with it.
void CheckSweep(const SweepOptions& options);

struct SweepWatch {
  // Asked before each context, which takes seconds to fill, and before each round; the cell that is
  // being measured is dropped.
  FunctionRef<bool()> should_stop;
  FunctionRef<void(std::string_view)> progress;  // what is about to be done
};

// One context at a time lies in memory. Throws as CheckSweep.
SweepRun RunSweep(ThreadPool& threads, const SweepOptions& options, const SweepWatch& watch);

}  // namespace winnow
