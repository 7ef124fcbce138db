// The policy of an arm that prunes documents in mid-prefill.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "policy/params.h"
#include "policy/prefill/proposer.h"
#include "policy/prefill/prune_params.h"
#include "policy/prefill/prune_problem.h"
#include "policy/prefill/prune_profile.h"
#include "policy/prefill/prune_run.h"

namespace winnow {

// Made once an arm and engine; for several threads.
struct PrefillPolicy {
  std::string text;  // the arm's clause with every parameter
  PruneParams params;
  std::shared_ptr<const Proposer> proposer;

  // Fixes everything that Algorithm 1 fixes before attention is seen: tolerances, observers, the
  // audit's draws. Throws Error(kUsage) if m0 is more than there are chunks, Error(kInput) for a
  // problem that is none (CheckProblem) or a profile of other heads.
  std::unique_ptr<PruneRun> NewRun(PruneProblem problem, const PruneProfile& profile,
                                   const PruneRunOptions& options = {}) const;
};

// By the name of its proposer, with the parameters of the arm's clause; null for "none". Throws
// Error(kUsage).
std::unique_ptr<PrefillPolicy> MakePruner(std::string_view name, Params& params);

}  // namespace winnow
