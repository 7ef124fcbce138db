#include "cli/prune_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "cli/output.h"
#include "policy/prefill/statement.h"

namespace winnow {
namespace {

constexpr int64_t kBarWidth = 20;
// A screen; the documents that lost most come first.
constexpr size_t kMostDocuments = 15;

std::string Bar(const DocumentUse& document) {
  const int64_t kept = document.tokens == 0 ? 0 : kBarWidth * document.kept / document.tokens;
  // What is there is seen, however little.
  const int64_t filled = std::clamp<int64_t>(kept, document.kept > 0 ? 1 : 0, kBarWidth);
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

AuditVerdict VerdictOf(const PrefillAccount& policy) {
  for (const PruneLayerAccount& layer : policy.layers) {
    if (layer.layer != policy.accepted_layer || !layer.audited) continue;
    if (layer.audit_vacuous) return AuditVerdict::kVacuous;
    return layer.audit_uninformative ? AuditVerdict::kUninformative : AuditVerdict::kPassed;
  }
  return AuditVerdict::kNotRun;
}

// "layers 1 to 8 took 0.61 s, those above 0.42 s, choosing and copying 0.03 s (foreseen …)"
std::string CostLine(const PruneLedger& pruning) {
  const PruneCostAccount& cost = pruning.cost;
  const bool dropped = pruning.applied_layer > 0;
  const auto parts = [&](const PrefillSeconds& seconds) {
    std::string text = FormatSeconds(seconds.below);
    if (dropped) text += " + " + FormatSeconds(seconds.above);
    return text + " + " + FormatSeconds(seconds.auxiliary);
  };
  std::string line = dropped ? fmt::format("layers up to {}, above, choosing and copying: {}",
                                           pruning.applied_layer, parts(cost.measured))
                             : fmt::format("layers, choosing: {}", parts(cost.measured));
  if (!cost.predicted.has_value()) return line + "\n";
  line += fmt::format("; foreseen {}", parts(*cost.predicted));
  if (dropped && cost.forecast.has_value()) {
    line += fmt::format(", {} without pruning", FormatSeconds(cost.forecast->full));
  }
  if (!std::isnan(cost.ideal_share)) {
    line += fmt::format("; of equal layers {:.0f} % is saved, between {:.0f} and {:.0f}",
                        100 * cost.ideal_share, 100 * cost.ideal_low, 100 * cost.ideal_high);
  }
  return line + "\n";
}

}  // namespace

std::vector<DocumentUse> UseOfDocuments(const Prompt& prompt, int64_t first_token,
                                        const PruneLedger* pruning) {
  std::unordered_map<int64_t, const PruneChunkAccount*> chunks;  // by first token
  if (pruning != nullptr) {
    for (const PruneChunkAccount& chunk : pruning->policy.chunks) chunks[chunk.first] = &chunk;
  }
  std::vector<DocumentUse> uses;
  for (const PromptDocument& document : prompt.documents) {
    uses.push_back({.id = document.id,
                    .tokens = document.n_tokens,
                    .kept = document.n_tokens,
                    .mass = std::numeric_limits<double>::quiet_NaN()});
  }
  for (const Span& span : prompt.spans) {
    const auto chunk = chunks.find(span.begin + first_token);
    if (span.kind != SpanKind::kChunk || chunk == chunks.end()) continue;
    DocumentUse& use = uses[span.document];
    if (!chunk->second->kept) use.kept -= span.end - span.begin;
    if (std::isfinite(chunk->second->mass)) {
      use.mass = (std::isnan(use.mass) ? 0 : use.mass) + chunk->second->mass;
    }
  }
  return uses;
}

std::string PruningInWords(const PruneLedger& pruning) {
  const PrefillAccount& policy = pruning.policy;
  if (policy.outcome != PruneOutcome::kPruned) {
    return fmt::format("nothing was dropped: {}", policy.reason);
  }
  std::string text = fmt::format(
      "pruned after layer {}: of {} tokens that might go {} were dropped", pruning.applied_layer,
      FormatCount(policy.candidate_tokens), FormatCount(policy.removed_tokens));
  if (pruning.resumed_tokens > 0) {
    text += fmt::format(" (chosen anew for this question; {} tokens restored from layer {})",
                        FormatCount(pruning.resumed_tokens), pruning.resumed_layers);
  }
  return text;
}

std::string FormatPruning(const PruneLedger& pruning, const std::vector<DocumentUse>& documents) {
  const PrefillAccount& policy = pruning.policy;
  std::string text = PruningInWords(pruning) + "\n";
  std::vector<DocumentUse> listed = documents;
  std::stable_sort(listed.begin(), listed.end(), [](const DocumentUse& a, const DocumentUse& b) {
    return a.tokens - a.kept > b.tokens - b.kept;
  });
  const size_t n_left_out = listed.size() - std::min(listed.size(), kMostDocuments);
  listed.resize(listed.size() - n_left_out);
  for (const DocumentUse& document : listed) {
    const double kept = document.tokens == 0 ? 1
                                             : static_cast<double>(document.kept) /
                                                   static_cast<double>(document.tokens);
    text += fmt::format("  {} {:>5.1f} % kept, {}  {}\n", Bar(document), 100 * kept,
                        std::isnan(document.mass)
                            ? "attention unknown"
                            : fmt::format("{:>5.1f} % of attention", 100 * document.mass),
                        document.id);
  }
  if (n_left_out > 0) text += fmt::format("  and {} more document(s)\n", n_left_out);
  if (policy.outcome == PruneOutcome::kPruned) {
    text += fmt::format("{}\n", AuditStatement(VerdictOf(policy)));
  }
  return text + CostLine(pruning);
}

}  // namespace winnow
