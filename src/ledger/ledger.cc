#include "ledger/ledger.h"

#include <algorithm>
#include <string>
#include <utility>

#include "policy/certify/statement.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

ordered_json SolverJson(const SolverAccount& s) {
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

ordered_json StatementsJson(const KindCounts& statements) {
  ordered_json json = ordered_json::object();
  for (int kind = 0; kind < KindCounts::kKinds; ++kind) {
    if (statements.by_kind[kind] == 0) continue;
    json[std::string(KindName(static_cast<StatementKind>(kind)))] = {
        {"count", statements.by_kind[kind]}, {"vacuous", statements.vacuous[kind]}};
  }
  if (statements.not_finite > 0) json["not_finite"] = {{"count", statements.not_finite}};
  return json;
}

// Null without intervals: estimates have none.
ordered_json BoundJson(const StatementAccount& statements) {
  if (statements.intervals == 0) return nullptr;
  const auto n = static_cast<double>(statements.intervals);
  return {{"heads", statements.intervals},
          {"lo", statements.lo},
          {"hi", statements.hi},
          {"hi_max", statements.hi_max},
          {"width_mean", (statements.hi - statements.lo) / n},
          {"width_p95", statements.WidthQuantile(0.95)},
          {"width_max", statements.width_max},
          {"estimates_outside", statements.estimate_outside}};
}

// Null without a certificate. A relative error is infinite, and null once it is written, where an
// output's norm is zero.
ordered_json OutputBoundJson(const OutputErrorAccount& errors) {
  if (errors.bounds + errors.not_finite == 0) return nullptr;
  const auto n = static_cast<double>(errors.bounds);
  return {{"heads", errors.bounds},
          {"statements", StatementsJson(errors)},
          {"absolute_mean", errors.absolute / n},
          {"absolute_max", errors.absolute_max},
          {"relative_mean", errors.relative / n},
          {"relative_p50", errors.RelativeQuantile(0.5)},
          {"relative_p95", errors.RelativeQuantile(0.95)},
          {"relative_max", errors.relative_max}};
}

ordered_json SparseJson(const AttentionAccount& a) {
  ordered_json json = {{"layers_sparse", a.layers_sparse},
                       {"layers_dense", a.layers_dense},
                       {"bytes_scanned", a.bytes_scanned},
                       {"bytes_certified", a.bytes_certified},
                       {"bytes_estimated", a.bytes_estimated},
                       {"mass_kind", a.solver.problems > 0 ? "not_applicable"
                                     : a.mass_heads > 0    ? "estimate"
                                                           : "unknown"},
                       {"mass_heads", a.mass_heads},
                       {"mass_exact", a.mass_exact},
                       {"mass_estimated", a.mass_estimated},
                       {"mass_dropped", a.mass_dropped},
                       {"mass_dropped_max", a.mass_dropped_max},
                       {"statements", StatementsJson(a.statements)},
                       {"unread_bound", BoundJson(a.statements)},
                       {"output_bound", OutputBoundJson(a.output_errors)}};
  for (const AttentionAccount::Fallback& fallback : AttentionAccount::Fallbacks()) {
    json[fallback.name] = a.*fallback.count;
  }
  json["residual_dropped"] = a.residual_dropped;
  if (a.solver.problems > 0) json["solver"] = SolverJson(a.solver);
  return json;
}

ordered_json HeadsJson(const AttentionAccount& a, int64_t kv_heads) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < a.heads.size(); ++i) {
    const HeadAccount& head = a.heads[i];
    if (head.steps == 0) continue;
    list.push_back({{"layer", static_cast<int64_t>(i) / kv_heads + 1},
                    {"kv_head", static_cast<int64_t>(i) % kv_heads},
                    {"steps", head.steps},
                    {"tokens_read", head.tokens_read},
                    {"mass_heads", head.mass_heads},
                    {"mass_exact", head.mass_exact},
                    {"mass_estimated", head.mass_estimated},
                    {"mass_dropped", head.mass_dropped},
                    {"bound_heads", head.intervals},
                    {"lo", head.lo},
                    {"hi", head.hi},
                    {"hi_max", head.hi_max},
                    {"error_heads", head.error_bounds},
                    {"error", head.error},
                    {"error_max", head.error_max},
                    {"widened", head.widened},
                    {"dense", head.dense}});
  }
  return list;
}

ordered_json StepsJson(const std::vector<StepLedger>& steps) {
  ordered_json list = ordered_json::array();
  for (const StepLedger& step : steps) {
    list.push_back({{"kv_tokens_read", step.tokens_read},
                    {"kv_tokens_resident", step.tokens_resident},
                    {"mass_heads", step.mass_heads},
                    {"mass_exact", step.mass_exact},
                    {"mass_estimated", step.mass_estimated},
                    {"mass_dropped", step.mass_dropped},
                    {"bound_heads", step.intervals},
                    {"lo", step.lo},
                    {"hi", step.hi},
                    {"fallbacks", step.fallbacks}});
  }
  return list;
}

}  // namespace

void PhaseLedger::MakeRoomFor(const AttentionAccount& account) {
  attention.MakeRoomFor(account);
  if (account.layers_sparse > 0 && steps.size() == steps.capacity()) {
    steps.reserve(std::max<size_t>(64, 2 * steps.size()));
  }
}

void PhaseLedger::AddStep(const AttentionAccount& account) {
  attention += account;
  ++tokens;
  if (account.layers_sparse == 0) return;
  const StatementAccount& statements = account.statements;
  steps.push_back({.tokens_read = account.tokens_read,
                   .tokens_resident = account.tokens_resident,
                   .mass_heads = account.mass_heads,
                   .mass_exact = account.mass_exact,
                   .mass_estimated = account.mass_estimated,
                   .mass_dropped = account.mass_dropped,
                   .intervals = statements.intervals,
                   .lo = statements.lo,
                   .hi = statements.hi,
                   .fallbacks = account.widened + account.widened_certificate +
                                account.widened_error + account.fallback_mass +
                                account.fallback_certificate + account.fallback_error +
                                account.fallback_gap + account.fallback_not_finite});
}

ordered_json ToJson(const PhaseLedger& phase, LedgerDetail detail) {
  ordered_json seconds;
  for (const StageSeconds::Stage& stage : StageSeconds::kStages) {
    seconds[stage.name] = phase.seconds.*stage.seconds;
  }
  const AttentionAccount& a = phase.attention;
  ordered_json json = {{"tokens", phase.tokens},
                       {"kv_tokens_read", a.tokens_read},
                       {"kv_tokens_resident", a.tokens_resident},
                       {"bytes_read", a.bytes_read},
                       {"bytes_dense", a.bytes_dense},
                       {"seconds", std::move(seconds)}};
  if (a.layers_sparse > 0) {
    json["sparse"] = SparseJson(a);
    if (detail == LedgerDetail::kFull) {
      json["sparse"]["heads"] = HeadsJson(a, a.kv_heads);
      json["sparse"]["steps"] = StepsJson(phase.steps);
    }
  }
  return json;
}

}  // namespace winnow
