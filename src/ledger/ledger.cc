#include "ledger/ledger.h"

#include <utility>

namespace winnow {
namespace {

nlohmann::ordered_json SolverJson(const SolverAccount& s) {
  return {{"problems", s.problems},
          {"candidates", s.candidates},
          {"iterations", s.iterations},
          {"iterations_max", s.iterations_max},
          {"converged", s.converged},
          {"not_finite", s.not_finite},
          {"gap_max", s.gap_max},
          {"distance_max", s.distance_max},
          {"value_distance_max", s.value_distance_max},
          {"eps_min", s.eps_min},
          {"eps_max", s.eps_max}};
}

}  // namespace

nlohmann::ordered_json ToJson(const PhaseLedger& phase) {
  nlohmann::ordered_json seconds;
  for (const StageSeconds::Stage& stage : StageSeconds::kStages) {
    seconds[stage.name] = phase.seconds.*stage.seconds;
  }
  const AttentionAccount& a = phase.attention;
  nlohmann::ordered_json json = {{"tokens", phase.tokens},
                                 {"kv_tokens_read", a.tokens_read},
                                 {"kv_tokens_resident", a.tokens_resident},
                                 {"bytes_read", a.bytes_read},
                                 {"bytes_dense", a.bytes_dense},
                                 {"seconds", std::move(seconds)}};
  if (a.layers_sparse > 0) {
    json["sparse"] = {{"layers_sparse", a.layers_sparse},
                      {"layers_dense", a.layers_dense},
                      {"bytes_scanned", a.bytes_scanned},
                      {"bytes_estimated", a.bytes_estimated},
                      {"mass_kind", a.solver.problems > 0 ? "not_applicable"
                                    : a.mass_heads > 0    ? "estimate"
                                                          : "unknown"},
                      {"mass_heads", a.mass_heads},
                      {"mass_exact", a.mass_exact},
                      {"mass_estimated", a.mass_estimated},
                      {"mass_dropped", a.mass_dropped},
                      {"mass_dropped_max", a.mass_dropped_max},
                      {"widened", a.widened},
                      {"fallback_mass", a.fallback_mass},
                      {"fallback_not_finite", a.fallback_not_finite}};
    if (a.solver.problems > 0) json["sparse"]["solver"] = SolverJson(a.solver);
  }
  return json;
}

}  // namespace winnow
