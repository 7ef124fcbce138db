// What `winnow diagnose --prefill` gives out: a record and a page for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/block_norms.h"
#include "eval/prune_bounds.h"
#include "eval/prune_diagnosis.h"

namespace winnow {

// docs/json.md, winnow.diagnose_prefill/1.
nlohmann::ordered_json ToJson(const PruneDiagnosis& diagnosis, const PruneBounds& bounds,
                              const ModelNorms& norms, const PruneDiagnosisOptions& options);

// A line a layer, what was removed, and what may and may not be concluded.
std::string PruneTable(const PruneDiagnosis& diagnosis, const PruneBounds& bounds,
                       const ModelNorms& norms);

}  // namespace winnow
