// What a profile for prefill pruning does to prompts: Algorithm 1 with each way to order chunks,
// and what its tolerances refuse.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/observed_prompt.h"
#include "policy/prefill/prune_profile.h"

namespace winnow {

// Of one order in which chunks are offered for removal, under the same tolerances.
struct ProposerFigures {
  int64_t accepted = 0;
  int64_t evidence_kept = 0;  // all of a prompt's, whether or not the request was accepted
  int64_t accepted_evidence_kept = 0;
  double mean_gap = 0;  // U − D in tokens, of accepted layers: what the scan can have missed
  // At equal saving: without tolerances, at the profile's first layer; with its head weights, and
  // with all heads alike.
  int64_t equal_saving_kept = 0;
  int64_t equal_saving_kept_all_heads = 0;
};

struct PruneFigures {
  struct Task {
    int64_t prompts = 0;
    int64_t evidence_kept = 0;
  };
  int64_t prompts = 0;
  double mean_layer = 0;                             // of acceptance, by entroprefill
  std::map<std::string, Task> tasks;                 // by entroprefill
  std::map<std::string, ProposerFigures> proposers;  // "entroprefill", "mass", …
  std::map<std::string, int64_t> verdicts;           // of the layers seen by entroprefill
  // Random removals of the same size: how many were drawn, and how many no monitored layer refuses.
  int64_t random_removals = 0;
  int64_t random_within = 0;
  // Requests whose tolerances Hoeffding's bound alone exceeds at every monitored layer, with the
  // default δ and draws: with audit=hoeffding nothing would be accepted.
  int64_t hoeffding_vacuous = 0;

  const ProposerFigures& method() const { return proposers.at("entroprefill"); }
};

// `profile` fits the prompts, which were observed at all its layers.
PruneFigures TestPruning(const std::vector<ObservedPrompt>& prompts, const PruneProfile& profile);

nlohmann::ordered_json ToJson(const PruneFigures& figures);

}  // namespace winnow
