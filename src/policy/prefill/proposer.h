// In which order a pruner offers the chunks for removal; what goes is decided by the same scan,
// constraints and audit for all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/params.h"
#include "policy/prefill/chunk_scores.h"
#include "policy/prefill/prune_problem.h"

namespace winnow {

// Stateless; for several threads.
class Proposer {
 public:
  virtual ~Proposer() = default;
  // How its heads are weighed and λ; the other parameters of scoring are the arm's.
  virtual void Configure(ScoreParams& params) const = 0;
  // By chunk [k]: the lowest go first. `seed` is the arm's.
  virtual std::vector<double> Priorities(const PruneProblem& problem, const ChunkScores& scores,
                                         uint64_t seed) const = 0;
};

// Null for "none". Reads its own parameters. Throws Error(kUsage) for an unknown name.
std::unique_ptr<Proposer> MakeProposer(std::string_view name, Params& params);

}  // namespace winnow
