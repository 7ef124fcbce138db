#include "policy/prefill/prefill_policy.h"

#include <utility>

#include "core/error.h"
#include "policy/prefill/chunks.h"

namespace winnow {

std::unique_ptr<PruneRun> PrefillPolicy::NewRun(PruneProblem problem, const PruneProfile& profile,
                                                const PruneRunOptions& options) const {
  CheckProblem(problem);
  if (profile.query_heads != problem.query_heads || profile.kv_heads != problem.kv_heads) {
    Throw(ErrorKind::kInput,
          "the profile '{}' has {} query heads and {} KV heads, and the model {} and {}",
          profile.name, profile.query_heads, profile.kv_heads, problem.query_heads,
          problem.kv_heads);
  }
  if (problem.n_chunks() > 0 && params.min_chunks > problem.n_chunks()) {
    Throw(ErrorKind::kUsage, "m0 = {} chunks have to stay, and the documents have {}",
          params.min_chunks, problem.n_chunks());
  }
  return std::make_unique<PruneRun>(text, params, proposer, std::move(problem), profile, options);
}

std::unique_ptr<PrefillPolicy> MakePruner(std::string_view name, Params& params) {
  std::shared_ptr<const Proposer> proposer = MakeProposer(name, params);
  if (proposer == nullptr) return nullptr;
  auto policy = std::make_unique<PrefillPolicy>();
  policy->proposer = std::move(proposer);
  policy->params = PruneParams::FromParams(params);
  return policy;
}

}  // namespace winnow
