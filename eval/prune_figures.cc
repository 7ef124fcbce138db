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
constexpr uint64_t kRandomDraws = 10;  // a prompt

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

std::vector<int32_t> Removed(const PrefillAccount& account) {
  if (account.accepted_layer == 0) return {};
  return account.layers.back().removed;
}

// Everything but the mean gap, which is still a sum.
void AddReplay(const ObservedPrompt& prompt, const PrefillAccount& account,
               ProposerFigures& figures) {
  const bool accepted = account.accepted_layer > 0;
  const bool kept = prompt.Keeps(Removed(account));
  figures.accepted += accepted ? 1 : 0;
  figures.evidence_kept += kept ? 1 : 0;
  figures.accepted_evidence_kept += accepted && kept ? 1 : 0;
  if (accepted) figures.mean_gap += account.layers.back().gap();
}

bool KeepsAtEqualSaving(const ObservedPrompt& prompt, const UnlimitedRemoval& removal, int layer,
                        std::span<const double> head_weights) {
  const PruneCandidate candidate = removal.Propose(prompt, LayerOf(prompt, layer), head_weights);
  return !candidate.invalid && prompt.Keeps(candidate.scan.removed);
}

bool IsWithin(const ObservedPrompt& prompt, const PruneProfile& profile,
              std::span<const int32_t> removed) {
  return std::ranges::any_of(profile.layers, [&](const PruneProfileLayer& layer) {
    return HeadLosses::Of(prompt.problem, LayerOf(prompt, layer.layer).chunk_mass, removed)
        .Within(layer.eps, layer.eps_audit);
  });
}

void AddRandomRemovals(const ObservedPrompt& prompt, const PruneProfile& profile,
                       const UnlimitedRemoval& removal, PruneFigures& figures) {
  for (uint64_t draw = 0; draw < kRandomDraws; ++draw) {
    const uint64_t seed = static_cast<uint64_t>(figures.prompts) * kRandomDraws + draw;
    const auto removed = RandomRemoval(prompt.problem, removal.TargetSaving(prompt), seed);
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
    ++figures.prompts;
    for (const char* name : kProposers) {
      ProposerFigures& of_proposer = figures.proposers[name];
      const std::string arm = fmt::format(
          "prefill={}{}", name,
          name == std::string_view("random") ? fmt::format(",seed={}", figures.prompts) : "");
      const PrefillAccount account = Replay(prompt, *MakePrefillPolicy(arm), profile);
      AddReplay(prompt, account, of_proposer);
      const UnlimitedRemoval removal(name, profile.keep, static_cast<uint64_t>(figures.prompts));
      const PruneProfileLayer& first = profile.layers.front();
      of_proposer.equal_saving_kept +=
          KeepsAtEqualSaving(prompt, removal, first.layer, first.head_weights) ? 1 : 0;
      of_proposer.equal_saving_kept_all_heads +=
          KeepsAtEqualSaving(prompt, removal, first.layer, {}) ? 1 : 0;
      if (name != std::string_view("entroprefill")) continue;
      layers += account.accepted_layer;
      for (const PruneLayerAccount& layer : account.layers) ++figures.verdicts[Name(layer.verdict)];
      ++figures.tasks[prompt.task].prompts;
      figures.tasks[prompt.task].evidence_kept += prompt.Keeps(Removed(account)) ? 1 : 0;
      AddRandomRemovals(prompt, profile, removal, figures);
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
