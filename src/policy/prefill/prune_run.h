// Pruning of one request's documents in mid-prefill: is shown the monitored layers one by one, and
// says at which of them which chunks go (EntroPrefill, Algorithm 1).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/prefill_account.h"
#include "policy/prefill/candidate.h"
#include "policy/prefill/layer_selection.h"
#include "policy/prefill/proposer.h"
#include "policy/prefill/prune_params.h"
#include "policy/prefill/prune_problem.h"
#include "policy/prefill/prune_profile.h"

namespace winnow {

struct PruneRunOptions {
  // The rows come from float32 attention: tolerances are made smaller by kFloatRowError, but not
  // below 0, so that a mass that is within the smaller one is within the arm's in exact arithmetic.
  bool float_rows = true;
  bool keep_tables = false;  // constraint tables and prices in the record
};

inline constexpr double kFloatRowError = 1e-6;

struct PruneDecision {
  bool accept = false;           // else go on, with everything
  std::vector<int32_t> removed;  // chunks, rising; empty unless accepted
};

// One request. Not for several threads.
class PruneRun {
 public:
  // What PrefillPolicy::NewRun documents.
  PruneRun(std::string policy, const PruneParams& params, std::shared_ptr<const Proposer> proposer,
           PruneProblem problem, const PruneProfile& profile, const PruneRunOptions& options);

  // From 1, rising. Empty if no layer has to be scored at all.
  const std::vector<int>& MonitoredLayers() const { return layers_; }

  // Nothing is dropped, for a reason that is known before any layer was seen; a bypass that was
  // known already stays. Not after Observe.
  void Bypass(PruneOutcome outcome, std::string reason);

  // The next monitored layer. Not after one was accepted.
  PruneDecision Observe(int layer, const LayerObservation& observation);

  // When prefill is over, whether or not a layer was accepted: settles the outcome and its reason,
  // and computes what is off the critical path (dual=lp). Once.
  PruneOutcome Finish();

  const PruneProblem& problem() const { return problem_; }
  const PrefillAccount& record() const { return account_; }

 private:
  struct LayerRules {
    std::vector<double> head_weights;
    std::vector<double> eps;        // [H], of the scan
    std::vector<double> eps_audit;  // [H]
  };
  void FixRules(const PruneParams& params, const PruneProfile& profile);
  void FixAudit(const PruneParams& params);
  bool IsUninformative(const LayerRules& rules) const;
  PruneLayerAccount StartLayer(int layer, const LayerRules& rules,
                               const PruneCandidate& candidate) const;
  void Screen(const PruneCandidate& candidate, PruneLayerAccount& account) const;
  void KeepTable(const PruneCandidate& candidate, PruneLayerAccount& account) const;
  void ShowChunks(const PruneCandidate& candidate);
  void Accept(const PruneCandidate& candidate, const LayerObservation& observation,
              PruneLayerAccount& account);
  void BoundByLinearPrograms();

  std::shared_ptr<const Proposer> proposer_;
  PruneProblem problem_;
  PruneRunOptions options_;
  bool linear_program_;
  std::vector<int> layers_;
  std::vector<LayerRules> layer_rules_;
  CandidateRule rule_;
  AuditRule audit_rule_;
  std::vector<double> observer_weights_;
  PrefillAccount account_;
  LayerSelector selector_;
};

}  // namespace winnow
