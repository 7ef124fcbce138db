#include "eval/prune_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "eval/prune_tolerances.h"
#include "policy/arm.h"

namespace winnow {
namespace {

constexpr const char* kProposers[] = {"entroprefill", "mass", "uniform", "recency", "random"};

const ObservedPrompt::Layer& LayerOf(const ObservedPrompt& prompt, int number) {
  const auto found = std::ranges::find(prompt.layers, number, &ObservedPrompt::Layer::number);
  WINNOW_CHECK(found != prompt.layers.end(), "layer {} was not observed", number);
  return *found;
}

// Algorithm 1, fed with what was observed.
PrefillAccount Replay(const ObservedPrompt& prompt, const PrefillPolicy& policy,
                      const PruneProfile& profile) {
  const std::unique_ptr<PruneRun> run = policy.NewRun(prompt.problem, profile);
  for (const int number : std::vector<int>(run->MonitoredLayers())) {
    if (run->Observe(number, prompt.Observation(LayerOf(prompt, number))).accept) break;
  }
  run->Finish();
  return run->record();
}

// Whether all evidence stays, as it does where nothing was accepted.
bool KeepsEvidence(const ObservedPrompt& prompt, const PrefillAccount& account) {
  return account.accepted_layer == 0 || prompt.Keeps(account.layers.back().removed);
}

// Everything but the mean gap, which is still a sum.
void AddReplay(const PrefillAccount& account, bool kept, ProposerFigures& figures) {
  const bool accepted = account.accepted_layer > 0;
  figures.accepted += accepted ? 1 : 0;
  figures.evidence_kept += kept ? 1 : 0;
  figures.accepted_evidence_kept += accepted && kept ? 1 : 0;
  if (accepted) figures.mean_gap += account.layers.back().gap();
}

bool IsWithin(const ObservedPrompt& prompt, const PruneProfile& profile,
              std::span<const int32_t> removed) {
  return std::ranges::any_of(profile.layers, [&](const PruneProfileLayer& layer) {
    return HeadLosses::Of(prompt.problem, LayerOf(prompt, layer.layer).chunk_mass, removed)
        .Within(layer.eps, layer.eps_audit);
  });
}

// `index` of the prompt.
void AddRandomRemovals(const ObservedPrompt& prompt, const PruneProfile& profile,
                       int64_t target_saving, uint64_t index, PruneFigures& figures) {
  for (const std::vector<int32_t>& removed : RandomRemovals(prompt.problem, target_saving, index)) {
    ++figures.random_removals;
    figures.random_within += IsWithin(prompt, profile, removed) ? 1 : 0;
  }
}

}  // namespace

PruneFigures TestPruning(const std::vector<ObservedPrompt>& prompts, const PruneProfile& profile) {
  PruneFigures figures;
  double layers = 0;
  const std::unique_ptr<PrefillPolicy> hoeffding =
      MakePrefillPolicy("prefill=entroprefill,audit=hoeffding");
  for (const ObservedPrompt& prompt : prompts) {
    const auto index = static_cast<uint64_t>(++figures.prompts);
    const PruneProfileLayer& rules = profile.layers.front();
    const ObservedPrompt::Layer& first = LayerOf(prompt, rules.layer);
    for (const char* name : kProposers) {
      ProposerFigures& of_proposer = figures.proposers[name];
      const auto policy = MakePrefillPolicy(fmt::format("prefill={},seed={}", name, index));
      const PrefillAccount account = Replay(prompt, *policy, profile);
      const bool kept = KeepsEvidence(prompt, account);
      AddReplay(account, kept, of_proposer);
      const UnlimitedRemoval removal(name, profile.keep, index);
      const auto keeps = [&](std::span<const double> head_weights) {
        return prompt.Keeps(removal.Propose(prompt, first, head_weights)) ? 1 : 0;
      };
      of_proposer.equal_saving_kept += keeps(rules.head_weights);
      of_proposer.equal_saving_kept_all_heads += keeps({});
      if (name != std::string_view("entroprefill")) continue;
      layers += account.accepted_layer;
      for (const PruneLayerAccount& layer : account.layers) ++figures.verdicts[Name(layer.verdict)];
      ++figures.tasks[prompt.task].prompts;
      figures.tasks[prompt.task].evidence_kept += kept ? 1 : 0;
      AddRandomRemovals(prompt, profile, removal.TargetSaving(prompt), index, figures);
    }
    figures.hoeffding_vacuous +=
        hoeffding->NewRun(prompt.problem, profile)->record().audit_vacuous ? 1 : 0;
  }
  for (auto& [name, of_proposer] : figures.proposers) {
    if (of_proposer.accepted > 0) of_proposer.mean_gap /= static_cast<double>(of_proposer.accepted);
  }
  if (!prompts.empty() && figures.method().accepted > 0) {
    figures.mean_layer = layers / static_cast<double>(figures.method().accepted);
  }
  return figures;
}

nlohmann::ordered_json ToJson(const PruneFigures& figures) {
  nlohmann::ordered_json tasks = nlohmann::ordered_json::object();
  for (const auto& [name, task] : figures.tasks) {
    tasks[name] = {{"prompts", task.prompts}, {"evidence_kept", task.evidence_kept}};
  }
  nlohmann::ordered_json proposers = nlohmann::ordered_json::object();
  for (const char* name : kProposers) {
    const auto found = figures.proposers.find(name);
    if (found == figures.proposers.end()) continue;
    const ProposerFigures& of_proposer = found->second;
    proposers[name] = {
        {"accepted", of_proposer.accepted},
        {"evidence_kept", of_proposer.evidence_kept},
        {"accepted_evidence_kept", of_proposer.accepted_evidence_kept},
        {"mean_gap", of_proposer.mean_gap},
        {"equal_saving_evidence_kept", of_proposer.equal_saving_kept},
        {"equal_saving_evidence_kept_all_heads", of_proposer.equal_saving_kept_all_heads}};
  }
  return {{"prompts", figures.prompts},
          {"mean_layer", figures.mean_layer},
          {"tasks", std::move(tasks)},
          {"proposers", std::move(proposers)},
          {"verdicts", figures.verdicts},
          {"random_removals", figures.random_removals},
          {"random_within", figures.random_within},
          {"hoeffding_vacuous", figures.hoeffding_vacuous}};
}

}  // namespace winnow
