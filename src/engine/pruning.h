// What the engine keeps of one prompt whose chunks may be dropped in mid-prefill.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "attention/observers.h"
#include "ledger/ledger.h"
#include "policy/prefill/prefill_policy.h"
#include "policy/prefill/prune_forecast.h"

namespace winnow {

// What an arm that prunes does with this engine's model.
struct EnginePruner {
  std::unique_ptr<PrefillPolicy> policy;
  PruneProfile profile;
};

struct SequencePruning {
  SequencePruning(std::unique_ptr<PruneRun> run_in, int query_heads, int head_dim)
      : run(std::move(run_in)), queries(run->problem().observers, query_heads, head_dim) {}

  bool Monitors(int layer) const {  // from 1
    const std::vector<int>& layers = run->MonitoredLayers();
    return decision.removed.empty() &&
           std::find(layers.begin(), layers.end(), layer) != layers.end();
  }

  std::unique_ptr<PruneRun> run;
  ObserverQueries queries;
  PruneDecision decision;  // the last one
  PrefillWork work;        // set once it is known what is there already
  PruneLedger record;
};

}  // namespace winnow
