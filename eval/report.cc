#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "core/check.h"
#include "core/hash.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

int64_t Count(const std::vector<double>& scores, bool (*is)(double)) {
  return std::count_if(scores.begin(), scores.end(), is);
}

bool IsHit(double score) { return score >= 1; }

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

ordered_json IntervalJson(const Interval& interval) {
  return ordered_json::array({interval.low, interval.high});
}

ordered_json VerdictJson(const Verdict& verdict, double margin) {
  return {{"lost", verdict.counts.lost},
          {"gained", verdict.counts.gained},
          {"mcnemar_p", verdict.mcnemar_p},
          {"mcnemar_harm_p", verdict.harm_p},
          {"difference", verdict.difference},
          {"difference_interval", IntervalJson(verdict.interval)},
          {"method", verdict.bootstrap ? "bootstrap" : "tango"},
          {"margin", margin},
          {"noninferior", verdict.noninferior}};
}

ordered_json PerUnit(double total, int64_t n, double scale) {
  if (n == 0) return nullptr;
  return scale * total / static_cast<double>(n);
}

std::string Share(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.3f}", static_cast<double>(part) / static_cast<double>(whole));
}

std::string PromptHash(const std::vector<TokenId>& tokens) {
  return HashBytes(std::as_bytes(std::span(tokens))).Hex();
}

bool Distinct(const std::vector<uint64_t>& clusters) {
  return std::set<uint64_t>(clusters.begin(), clusters.end()).size() == clusters.size();
}

}  // namespace

ordered_json ToJson(const Fidelity& fidelity) {
  if (fidelity.positions == 0) return nullptr;
  const auto n = static_cast<double>(fidelity.positions);
  return {{"positions", fidelity.positions},
          {"kl", fidelity.MeanKl()},
          {"top1_agreement", fidelity.Top1Agreement()},
          {"nll_dense", fidelity.nll_dense / n},
          {"nll", fidelity.nll_arm / n},
          {"perplexity_ratio", fidelity.PerplexityRatio()}};
}

ordered_json SampleJson(const EvalSample& sample, const ArmRun& run) {
  const bool scored = !sample.answers.empty();
  const bool continued = !sample.continuation.empty();
  const RequestResult& result = run.result;
  return {{"task", sample.task},
          {"length", sample.length == 0 ? ordered_json(nullptr) : ordered_json(sample.length)},
          {"index", sample.index},
          {"arm", run.arm},
          {"arm_resolved", result.arm_resolved},
          {"prompt_hash", PromptHash(sample.tokens)},
          {"prompt_tokens", sample.tokens.size()},
          {"reused_tokens", result.reused_tokens},
          {"answers", sample.answers},
          {"answer", continued ? ordered_json(nullptr) : ordered_json(result.text)},
          {"answer_tokens", result.tokens.size()},
          {"finish_reason", FinishReasonName(result.finish_reason)},
          {"score", scored ? ordered_json(run.score) : ordered_json(nullptr)},
          {"hit", scored ? ordered_json(run.hit()) : ordered_json(nullptr)},
          {"first_difference",
           run.first_difference ? ordered_json(*run.first_difference) : ordered_json(nullptr)},
          {"fidelity", run.fidelity ? ToJson(*run.fidelity) : ordered_json(nullptr)},
          {"decode", ToJson(result.ledger.decode)},
          {"ttft_ms", result.ttft_seconds * 1e3},
          {"evidence_kept",
           run.evidence_kept ? ordered_json(*run.evidence_kept) : ordered_json(nullptr)},
          {"pruning", result.ledger.pruning ? ToJson(*result.ledger.pruning) : nullptr},
          {"seconds", run.seconds},
          {"error", run.error.empty() ? ordered_json(nullptr) : ordered_json(run.error)}};
}

Verdict Judge(const std::vector<double>& scores, const std::vector<double>& reference,
              const std::vector<uint64_t>& clusters, const JudgeOptions& options) {
  WINNOW_CHECK(!scores.empty() && scores.size() == reference.size() &&
               scores.size() == clusters.size());
  Verdict verdict;
  verdict.counts.pairs = static_cast<int64_t>(scores.size());
  std::vector<BootstrapItem> items;
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool hit = IsHit(scores[i]);
    const bool reference_hit = IsHit(reference[i]);
    verdict.counts.lost += reference_hit && !hit ? 1 : 0;
    verdict.counts.gained += hit && !reference_hit ? 1 : 0;
    verdict.bootstrap |=
        (scores[i] != 0 && scores[i] != 1) || (reference[i] != 0 && reference[i] != 1);
    items.push_back({.sum = scores[i] - reference[i], .n = 1, .cluster = clusters[i]});
  }
  verdict.bootstrap |= !Distinct(clusters);
  verdict.mcnemar_p = McNemarP(verdict.counts);
  verdict.harm_p = McNemarHarmP(verdict.counts);
  if (verdict.bootstrap) {
    const BootstrapMean mean = Bootstrap(items, options.seed);
    verdict.difference = mean.mean;
    verdict.interval = mean.interval;
    verdict.noninferior = mean.one_sided_low > -options.margin;
  } else {
    verdict.difference = verdict.counts.Difference();
    verdict.interval = TangoInterval(verdict.counts);
    verdict.noninferior = TangoZ(verdict.counts, -options.margin) > kOneSided95;
  }
  return verdict;
}

void EvalReport::Add(const EvalSample& sample, const std::vector<ArmRun>& runs) {
  auto cell = std::find_if(cells_.begin(), cells_.end(), [&](const Cell& c) {
    return c.task == sample.task && c.length == sample.length;
  });
  if (cell == cells_.end()) {
    cell = cells_.insert(cells_.end(), Cell{.task = sample.task, .length = sample.length});
    for (const ArmRun& run : runs) cell->arms.push_back({.arm = run.arm});
  }
  WINNOW_CHECK(cell->arms.size() == runs.size());
  cell->scored = !sample.answers.empty();
  cell->clusters.push_back(sample.cluster);
  for (size_t i = 0; i < runs.size(); ++i) {
    const ArmRun& run = runs[i];
    ArmTotals& totals = cell->arms[i];
    if (totals.resolved.empty()) totals.resolved = run.result.arm_resolved;
    if (totals.resolved != run.result.arm_resolved) totals.resolved = "mixed";
    totals.failed += run.error.empty() ? 0 : 1;
    totals.scores.push_back(run.score);
    totals.seconds += run.seconds;
    const PhaseLedger& decode = run.result.ledger.decode;
    totals.decode.attention += decode.attention;
    totals.decode.seconds += decode.seconds;
    totals.decode.tokens += decode.tokens;
    const auto n_tokens = static_cast<int64_t>(run.result.tokens.size());
    totals.answer_tokens += n_tokens;
    totals.steps += std::max<int64_t>(n_tokens - 1, 0);
    totals.decode_seconds += run.result.decode_seconds;
    totals.ttft_seconds += run.result.ttft_seconds;
    if (run.pruned) {
      totals.prunes = true;
      totals.pruned += *run.pruned ? 1 : 0;
      totals.with_evidence += run.evidence_kept ? 1 : 0;
      totals.evidence_kept += run.evidence_kept.value_or(false) ? 1 : 0;
    }
    if (!run.fidelity || run.fidelity->positions == 0) continue;
    totals.fidelity += *run.fidelity;
    totals.kl.push_back(
        {.sum = run.fidelity->kl, .n = run.fidelity->positions, .cluster = sample.cluster});
  }
}

ordered_json EvalReport::CellJson(const Cell& cell, const ArmTotals& arm) const {
  const auto n = static_cast<int64_t>(arm.scores.size());
  ordered_json fidelity = ToJson(arm.fidelity);
  if (!arm.kl.empty()) {
    fidelity["kl_interval"] = IntervalJson(Bootstrap(arm.kl, options_.seed).interval);
  }
  const bool judged = cell.scored && &arm != &cell.arms.front();
  return {{"task", cell.task},
          {"length", cell.length == 0 ? ordered_json(nullptr) : ordered_json(cell.length)},
          {"arm", arm.arm},
          {"arm_resolved", arm.resolved},
          {"samples", n},
          {"failed", arm.failed},
          {"hits", cell.scored ? ordered_json(Count(arm.scores, &IsHit)) : ordered_json(nullptr)},
          {"score", cell.scored ? ordered_json(Mean(arm.scores)) : ordered_json(nullptr)},
          {"against_dense", judged ? VerdictJson(Judge(arm.scores, cell.arms.front().scores,
                                                       cell.clusters, options_),
                                                 options_.margin)
                                   : ordered_json(nullptr)},
          {"fidelity", std::move(fidelity)},
          {"decode", ToJson(arm.decode)},
          {"answer_tokens", arm.answer_tokens},
          {"pruning", arm.prunes ? ordered_json({{"pruned", arm.pruned},
                                                 {"with_evidence", arm.with_evidence},
                                                 {"evidence_kept", arm.evidence_kept}})
                                 : ordered_json(nullptr)},
          {"ttft_ms", PerUnit(arm.ttft_seconds, n, 1e3)},
          {"tpot_ms", PerUnit(arm.decode_seconds, arm.steps, 1e3)},
          {"seconds", arm.seconds}};
}

ordered_json EvalReport::CellsJson() const {
  ordered_json cells = ordered_json::array();
  for (const Cell& cell : cells_) {
    for (const ArmTotals& arm : cell.arms) cells.push_back(CellJson(cell, arm));
  }
  return cells;
}

std::string EvalReport::Row(const Cell& cell, const ArmTotals& arm) const {
  const auto n = static_cast<int64_t>(arm.scores.size());
  std::string row =
      cell.scored ? fmt::format("{:>9}{:>7.3f}", fmt::format("{}/{}", Count(arm.scores, &IsHit), n),
                                Mean(arm.scores))
                  : fmt::format("{:>9}{:>7}", "-", "-");
  if (arm.fidelity.positions > 0) {
    row += fmt::format("{:>10.2g}{:>8.3f}{:>8.3f}", arm.fidelity.MeanKl(),
                       arm.fidelity.Top1Agreement(), arm.fidelity.PerplexityRatio());
  } else {
    row += fmt::format("{:>10}{:>8}{:>8}", "-", "-", "-");
  }
  const AttentionAccount& attention = arm.decode.attention;
  row += fmt::format("{:>8}{:>8}{:>9.1f}", Share(attention.tokens_read, attention.tokens_resident),
                     Share(attention.bytes_read, attention.bytes_dense), arm.seconds);
  if (!cell.scored || &arm == &cell.arms.front()) {
    row += fmt::format("{:>9}  {}", "-", "-");
  } else {
    const Verdict verdict = Judge(arm.scores, cell.arms.front().scores, cell.clusters, options_);
    row +=
        fmt::format("{:>9.3f}  {}", verdict.mcnemar_p, verdict.noninferior ? "yes" : "not shown");
  }
  if (arm.prunes) row += fmt::format("  pruned {}/{}", arm.pruned, n);
  if (arm.with_evidence > 0) {
    row += fmt::format(", evidence kept {}/{}", arm.evidence_kept, arm.with_evidence);
  }
  if (arm.failed > 0) row += fmt::format("  {} failed", arm.failed);
  return row;
}

std::string EvalReport::Table() const {
  size_t width = 3;  // of the longest arm
  for (const Cell& cell : cells_) {
    for (const ArmTotals& arm : cell.arms) width = std::max(width, arm.arm.size());
  }
  std::string table =
      fmt::format("{:<10}{:>8}  {:<{}}{:>9}{:>7}{:>10}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}  {}\n", "task",
                  "length", "arm", width, "hits", "score", "KL", "top-1", "ppl", "tokens", "bytes",
                  "seconds", "McNemar", "noninferior");
  for (const Cell& cell : cells_) {
    for (const ArmTotals& arm : cell.arms) {
      table += fmt::format("{:<10}{:>8}  {:<{}}{}\n", cell.task,
                           cell.length == 0 ? "-" : std::to_string(cell.length), arm.arm, width,
                           Row(cell, arm));
    }
  }
  return table;
}

}  // namespace winnow
