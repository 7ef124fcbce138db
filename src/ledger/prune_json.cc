#include <utility>

#include "ledger/ledger.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

// Numbers that are not defined are NaN here, and null once they are written.

ordered_json AuditJson(const PruneLayerAccount& layer) {
  if (!layer.audited) return nullptr;
  return {{"vacuous", layer.audit_vacuous},
          {"uninformative", layer.audit_uninformative},
          {"worst_upper", layer.audit_worst_upper},
          {"mean", layer.audit_mean},
          {"upper", layer.audit_upper},
          {"eps", layer.audit_eps}};
}

ordered_json LayerJson(const PruneLayerAccount& layer, LedgerDetail detail) {
  ordered_json json = {{"layer", layer.layer},
                       {"verdict", Name(layer.verdict)},
                       {"document_mass", layer.document_mass},
                       {"groups_fallen_back", layer.groups_fallen_back},
                       {"heads_outside_envelope", layer.heads_outside_envelope},
                       {"removed", layer.removed},
                       {"saving", layer.saving},
                       {"worst_row_share", layer.worst_row_share},
                       {"saving_bound", layer.saving_bound},
                       {"dual_gap", layer.gap()},
                       {"target_infeasible", layer.target_infeasible},
                       {"set_change", layer.set_change},
                       {"streak", layer.streak},
                       {"audit", AuditJson(layer)},
                       {"pooled_removed", layer.pooled_removed},
                       {"seconds",
                        {{"score", layer.seconds_score},
                         {"scan", layer.seconds_scan},
                         {"dual", layer.seconds_dual},
                         {"audit", layer.seconds_audit}}}};
  if (detail == LedgerDetail::kFull) {
    json["prices"] = {{"rows", layer.row_prices},
                      {"row", layer.price_row},
                      {"row_price", layer.row_price},
                      {"count", layer.count_price}};
    json["head_share"] = layer.head_share;
    json["head_eps"] = layer.head_eps;
    json["head_removed"] = layer.head_removed;
    json["head_envelope"] = layer.head_envelope;
    json["constraints"] = {{"eps", layer.constraint_eps}, {"mass", layer.constraint_mass}};
  }
  return json;
}

ordered_json ChunksJson(const std::vector<PruneChunkAccount>& chunks) {
  ordered_json list = ordered_json::array();
  for (const PruneChunkAccount& chunk : chunks) {
    list.push_back({{"first", chunk.first},
                    {"tokens", chunk.tokens},
                    {"kept", chunk.kept},
                    {"score", chunk.score},
                    {"mass", chunk.mass}});
  }
  return list;
}

ordered_json SecondsJson(const PrefillSeconds& seconds) {
  return {{"below", seconds.below},
          {"above", seconds.above},
          {"auxiliary", seconds.auxiliary},
          {"total", seconds.total()}};
}

ordered_json ForecastJson(const PruneForecast& forecast) {
  return {{"full", forecast.full},
          {"kept_tokens", forecast.kept},
          {"first", {{"layer", forecast.first_layer}, {"seconds", SecondsJson(forecast.first)}}},
          {"last", {{"layer", forecast.last_layer}, {"seconds", SecondsJson(forecast.last)}}},
          {"saving", forecast.saving()},
          {"pays", forecast.pays()}};
}

ordered_json CostJson(const PruneCostAccount& cost) {
  return {{"forecast", cost.forecast ? ForecastJson(*cost.forecast) : ordered_json(nullptr)},
          {"predicted", cost.predicted ? SecondsJson(*cost.predicted) : ordered_json(nullptr)},
          {"measured", SecondsJson(cost.measured)},
          {"ideal_saving",
           {{"share", cost.ideal_share}, {"low", cost.ideal_low}, {"high", cost.ideal_high}}}};
}

// Runs of retained positions, [first, end).
ordered_json RetainedJson(const PrefillAccount& policy) {
  ordered_json runs = ordered_json::array();
  int64_t at = 0;
  const auto add = [&](int64_t end) {
    if (end > at) runs.push_back({at, end});
  };
  for (const PruneChunkAccount& chunk : policy.chunks) {
    if (chunk.kept) continue;
    add(chunk.first);
    at = chunk.first + chunk.tokens;
  }
  add(policy.prompt_tokens);
  return runs;
}

}  // namespace

ordered_json ToJson(const PruneLedger& pruning, LedgerDetail detail) {
  const PrefillAccount& p = pruning.policy;
  ordered_json layers = ordered_json::array();
  for (const PruneLayerAccount& layer : p.layers) layers.push_back(LayerJson(layer, detail));
  ordered_json json = {
      {"policy", p.policy},
      {"profile", p.profile},
      {"outcome", Name(p.outcome)},
      {"reason", p.reason.empty() ? ordered_json(nullptr) : ordered_json(p.reason)},
      {"accepted_layer", p.accepted_layer},
      {"applied_layer", pruning.applied_layer},
      {"candidate_tokens", p.candidate_tokens},
      {"target_saving", p.target_saving},
      {"removed_tokens", p.removed_tokens},
      {"resumed", {{"layers", pruning.resumed_layers}, {"tokens", pruning.resumed_tokens}}},
      {"parked_bytes", pruning.parked_bytes},
      {"layers_compacted", pruning.layers_compacted},
      {"rows_computed", pruning.rows_computed},
      {"rows_dense", pruning.rows_dense},
      {"parameters",
       {{"min_chunks", p.min_chunks},
        {"max_set_change", p.max_set_change},
        {"min_streak", p.min_streak},
        {"row_error", p.row_error},
        {"monitored_layers", p.monitored_layers}}},
      {"observers",
       {{"first", p.observers.empty() ? ordered_json(nullptr) : ordered_json(p.observers.front())},
        {"count", p.observers.size()},
        {"first_proposal", p.first_proposal}}},
      {"audit",
       {{"mode", p.audit_mode},
        {"slack", p.audit_slack},
        {"vacuous", p.audit_vacuous},
        {"uninformative", p.audit_uninformative},
        {"seed", p.audit_seed},
        {"draws", p.audit_draws.size()}}},
      {"layers", std::move(layers)},
      {"output_change", pruning.output_change},
      {"output_norm", pruning.output_norm},
      {"chunks", ChunksJson(p.chunks)},
      {"retained", RetainedJson(p)},
      {"cost", CostJson(pruning.cost)},
      {"seconds", p.seconds()}};
  if (detail == LedgerDetail::kFull) json["audit"]["indices"] = p.audit_draws;
  return json;
}

}  // namespace winnow
