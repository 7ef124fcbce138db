#include "policy/prefill/prune_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/account.h"
#include "core/check.h"
#include "policy/prefill/dual_bound.h"
#include "policy/prefill/envelope.h"

namespace winnow {
namespace {

// What is left of tolerances if rows may be off by `error`.
std::vector<double> Shrunk(std::vector<double> eps, const std::optional<double>& override,
                           double error) {
  for (double& e : eps) e = std::max(0.0, override.value_or(e) - error);
  return eps;
}

void NoteBound(DualBound bound, int64_t target, PruneLayerAccount& account) {
  account.saving_bound = bound.tokens;
  account.saving_bound_tokens = bound.WholeTokens();
  account.target_infeasible = bound.Excludes(target);
  account.price_row = bound.price_row;
  account.row_price = bound.price;
  account.count_price = bound.count_price;
  account.row_prices = std::move(bound.row_price);
}

// All that is known before attention is seen, but for what concerns the monitored layers.
PrefillAccount StartAccount(std::string policy, const PruneParams& params,
                            const PruneProblem& problem, const PruneProfile& profile,
                            const PruneRunOptions& options) {
  PrefillAccount account;
  account.policy = std::move(policy);
  account.profile = profile.name;
  account.prompt_tokens = problem.n_tokens();
  account.candidate_tokens = problem.n_candidate_tokens();
  account.target_saving = params.TargetSaving(account.candidate_tokens, profile.keep);
  account.min_chunks = params.min_chunks;
  account.max_set_change = params.max_change.value_or(profile.max_change);
  account.min_streak = params.min_streak.value_or(profile.min_streak);
  account.row_error = options.float_rows ? kFloatRowError : 0;
  account.observers = problem.observers;
  account.first_proposal = problem.first_proposal;
  for (const int64_t tokens : problem.chunk_tokens) account.chunks.push_back({.tokens = tokens});
  for (int64_t at = problem.n_tokens() - 1; at >= 0; --at) {
    if (problem.chunk_of[at] >= 0) account.chunks[problem.chunk_of[at]].first = at;
  }
  const auto bypass =
      BypassBeforeScoring(problem.n_chunks(), params.min_chunks, account.target_saving);
  account.outcome = bypass.value_or(PruneOutcome::kFullContext);
  return account;
}

// "no layer passed: target_not_met at 18, 19; audit_failed at 21"
std::string WhyNone(const std::vector<PruneLayerAccount>& layers) {
  std::string why;
  std::vector<PruneVerdict> seen;
  for (const PruneLayerAccount& layer : layers) {
    if (std::find(seen.begin(), seen.end(), layer.verdict) != seen.end()) continue;
    seen.push_back(layer.verdict);
    std::string where;
    for (const PruneLayerAccount& other : layers) {
      if (other.verdict != layer.verdict) continue;
      where += fmt::format("{}{}", where.empty() ? "" : ", ", other.layer);
    }
    why += fmt::format("{}{} at {}", why.empty() ? "" : "; ", Name(layer.verdict), where);
  }
  return why.empty() ? "no layer was looked at" : "no layer passed: " + why;
}

std::string WhyBypassed(PruneOutcome outcome, const std::vector<PruneLayerAccount>& layers) {
  switch (outcome) {
    case PruneOutcome::kPruned:
      return "";
    case PruneOutcome::kFullContext:
      return WhyNone(layers);
    case PruneOutcome::kNoCandidates:
      return "the prompt has no chunk that may be dropped";
    case PruneOutcome::kZeroTarget:
      return "the documents are within the target already";
    case PruneOutcome::kNothingRemovable:
      return "m0 keeps every chunk";
    case PruneOutcome::kDoesNotPay:
      return "it would not pay";
  }
  return "";
}

}  // namespace

PruneRun::PruneRun(std::string policy, const PruneParams& params,
                   std::shared_ptr<const Proposer> proposer, PruneProblem problem,
                   const PruneProfile& profile, const PruneRunOptions& options)
    : proposer_(std::move(proposer)),
      problem_(std::move(problem)),
      options_(options),
      linear_program_(params.linear_program),
      account_(StartAccount(std::move(policy), params, problem_, profile, options)),
      selector_({account_.target_saving, account_.min_streak, account_.max_set_change}) {
  // Otherwise no layer is looked at.
  if (account_.outcome == PruneOutcome::kFullContext) FixRules(params, profile);
  FixAudit(params);
}

void PruneRun::FixRules(const PruneParams& params, const PruneProfile& profile) {
  rule_.score.z_min = params.z_min;
  rule_.score.min_mass = params.min_mass;
  rule_.score.eps_s = params.eps_s;
  rule_.min_chunks = params.min_chunks;
  rule_.target_saving = account_.target_saving;
  rule_.seed = params.seed;
  for (const PruneProfileLayer& layer : profile.layers) {
    layers_.push_back(layer.layer);
    layer_rules_.push_back(
        {.head_weights = layer.head_weights,
         .eps = Shrunk(layer.eps, params.eps, account_.row_error),
         .eps_audit = Shrunk(layer.eps_audit, params.eps_audit, account_.row_error)});
  }
  account_.monitored_layers = layers_;
}

void PruneRun::FixAudit(const PruneParams& params) {
  audit_rule_ = {.mode = params.audit,
                 .delta = params.delta,
                 .n_draws = params.n_draws,
                 .n_layers = std::max<int64_t>(1, std::ssize(layers_)),
                 .n_heads = problem_.query_heads};
  account_.audit_mode = Name(params.audit);
  account_.audit_slack = AuditSlack(audit_rule_);
  account_.audit_seed = params.seed;
  if (layers_.empty()) return;
  if (params.audit != AuditMode::kExact) {
    account_.audit_draws = DrawObservers(problem_.n_observers(), params.n_draws, params.seed);
  }
  observer_weights_ = ObserverWeights(problem_.n_observers(), account_.audit_draws);
  const auto vacuous = [&](const LayerRules& layer) {
    return AuditIsVacuous(audit_rule_, layer.eps_audit);
  };
  const auto uninformative = [&](const LayerRules& layer) { return IsUninformative(layer); };
  account_.audit_vacuous = std::all_of(layer_rules_.begin(), layer_rules_.end(), vacuous);
  account_.audit_uninformative =
      std::all_of(layer_rules_.begin(), layer_rules_.end(), uninformative);
}

bool PruneRun::IsUninformative(const LayerRules& rules) const {
  return AuditIsUninformative(audit_rule_, problem_.first_proposal == 0, rules.eps,
                              rules.eps_audit);
}

void PruneRun::Bypass(PruneOutcome outcome, std::string reason) {
  WINNOW_CHECK(account_.layers.empty());
  if (account_.outcome != PruneOutcome::kFullContext) return;
  account_.outcome = outcome;
  account_.reason = std::move(reason);
  // As for a bypass that is known from the start: no layer is looked at, no audit can run.
  layers_.clear();
  layer_rules_.clear();
  account_.monitored_layers.clear();
  account_.audit_draws.clear();
  account_.audit_vacuous = false;
  account_.audit_uninformative = false;
}

PruneDecision PruneRun::Observe(int layer, const LayerObservation& observation) {
  const size_t index = account_.layers.size();
  WINNOW_CHECK(index < layers_.size() && layers_[index] == layer && account_.accepted_layer == 0,
               "layer {} is not the next that is monitored", layer);
  const LayerRules& rules = layer_rules_[index];
  CandidateRule rule = rule_;
  rule.head_weights = rules.head_weights;
  rule.eps = rules.eps;
  const PruneCandidate candidate = ProposeRemoval(problem_, observation.mean_attention,
                                                  observation.chunk_mass, *proposer_, rule);
  PruneLayerAccount& account = account_.layers.emplace_back(StartLayer(layer, rules, candidate));
  LayerSelector::Step step;
  if (candidate.invalid) {
    step = selector_.ObserveInvalid(*candidate.invalid);
  } else {
    Screen(candidate, account);
    ShowChunks(candidate);
    step = selector_.Observe(RemovalFlags(candidate.scan.removed, problem_.n_chunks()),
                             candidate.scan.saving, [&] {
                               const ScopedTimer timer(account.seconds_audit);
                               return Audit(audit_rule_, observation.chunk_mass, observer_weights_,
                                            candidate.scan.removed, rules.eps_audit);
                             });
  }
  account.verdict = step.verdict;
  account.set_change = step.set_change;
  account.streak = step.streak;
  if (step.audit) {
    account.audited = true;
    account.audit_mean = std::move(step.audit->mean);
    account.audit_upper = std::move(step.audit->upper);
    account.audit_worst_upper = step.audit->worst_upper;
    account.audit_eps = rules.eps_audit;
  }
  if (step.verdict != PruneVerdict::kAccepted) return {};
  Accept(candidate, observation, account);
  PruneDecision decision{.accept = true, .removed = candidate.scan.removed};
  std::sort(decision.removed.begin(), decision.removed.end());
  return decision;
}

PruneLayerAccount PruneRun::StartLayer(int layer, const LayerRules& rules,
                                       const PruneCandidate& candidate) const {
  PruneLayerAccount account;
  account.layer = layer;
  account.seconds_score = candidate.seconds_score;
  account.seconds_scan = candidate.seconds_scan;
  account.heads_outside_envelope =
      std::count(rules.head_weights.begin(), rules.head_weights.end(), 0.0);
  account.groups_fallen_back =
      std::count(candidate.scores.group_fallback.begin(), candidate.scores.group_fallback.end(), 1);
  if (candidate.scores.finite) {
    account.document_mass = candidate.scores.document_mass;
    account.head_share = candidate.scores.pool_share;
  }
  account.head_eps = rules.eps;
  account.audit_vacuous = AuditIsVacuous(audit_rule_, rules.eps_audit);
  account.audit_uninformative = IsUninformative(rules);
  return account;
}

void PruneRun::Screen(const PruneCandidate& candidate, PruneLayerAccount& account) const {
  account.removed = candidate.scan.removed;
  account.saving = candidate.scan.saving;
  for (size_t a = 0; a < candidate.rows.size(); ++a) {
    const double eps = candidate.rows[a].eps;
    if (eps > 0) {
      account.worst_row_share = std::max(account.worst_row_share, candidate.scan.row_mass[a] / eps);
    }
  }
  Timed(account.seconds_dual, [&] {
    NoteBound(BoundBySinglePrices({problem_.chunk_tokens, candidate.rows, account_.min_chunks}),
              account_.target_saving, account);
  });
  if (options_.keep_tables || linear_program_) KeepTable(candidate, account);
}

void PruneRun::KeepTable(const PruneCandidate& candidate, PruneLayerAccount& account) const {
  const ScopedTimer timer(account.seconds_dual);
  for (const ConstraintRow& row : candidate.rows) {
    account.constraint_mass.insert(account.constraint_mass.end(), row.mass,
                                   row.mass + problem_.n_chunks());
    account.constraint_eps.push_back(row.eps);
  }
}

void PruneRun::ShowChunks(const PruneCandidate& candidate) {
  for (size_t i = 0; i < account_.chunks.size(); ++i) {
    account_.chunks[i].score = candidate.priorities[i];
    account_.chunks[i].mass = candidate.scores.chunk_mass[i];
  }
}

void PruneRun::Accept(const PruneCandidate& candidate, const LayerObservation& observation,
                      PruneLayerAccount& account) {
  account_.accepted_layer = account.layer;
  account_.outcome = PruneOutcome::kPruned;
  account_.removed_tokens = candidate.scan.saving;
  const std::vector<uint8_t> flags = RemovalFlags(candidate.scan.removed, problem_.n_chunks());
  for (size_t i = 0; i < flags.size(); ++i) account_.chunks[i].kept = flags[i] == 0;

  const ScopedTimer timer(account.seconds_audit);
  std::vector<uint8_t> removed(problem_.n_tokens(), 0);
  for (size_t j = 0; j < removed.size(); ++j) {
    const int32_t chunk = problem_.chunk_of[j];
    removed[j] = chunk >= 0 ? flags[chunk] : 0;
  }
  account.head_removed.assign(problem_.query_heads, kUndefined);
  account.head_envelope.assign(problem_.query_heads, kUndefined);
  for (int h = 0; h < problem_.query_heads; ++h) {
    const double omega = candidate.scores.pool_share[h];
    const float* row = observation.mean_attention.row(h);
    const std::vector<double> exact(row, row + problem_.n_tokens());
    if (!(omega > 0)) continue;
    const DeletionEnvelope envelope =
        EnvelopeOf(exact, candidate.scores.pooled, std::min(1.0, omega), removed);
    account.pooled_removed = envelope.pooled_removed;
    account.head_removed[h] = envelope.removed;
    account.head_envelope[h] = envelope.bound;
  }
}

PruneOutcome PruneRun::Finish() {
  if (linear_program_) BoundByLinearPrograms();
  if (account_.reason.empty()) account_.reason = WhyBypassed(account_.outcome, account_.layers);
  return account_.outcome;
}

void PruneRun::BoundByLinearPrograms() {
  const auto n_chunks = static_cast<size_t>(problem_.n_chunks());
  for (PruneLayerAccount& layer : account_.layers) {
    if (layer.constraint_eps.empty()) continue;
    Timed(layer.seconds_dual, [&] {
      std::vector<ConstraintRow> rows;
      for (size_t a = 0; a < layer.constraint_eps.size(); ++a) {
        rows.push_back({layer.constraint_mass.data() + a * n_chunks, layer.constraint_eps[a]});
      }
      NoteBound(BoundByLinearProgram({problem_.chunk_tokens, rows, account_.min_chunks}),
                account_.target_saving, layer);
    });
    if (options_.keep_tables) continue;
    layer.constraint_mass.clear();
    layer.constraint_eps.clear();
  }
}

}  // namespace winnow
