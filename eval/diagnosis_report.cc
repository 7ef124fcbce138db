#include "eval/diagnosis_report.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

namespace winnow {
namespace {

using nlohmann::ordered_json;

// nlohmann writes what is not finite as null, which is what docs/json.md promises.
ordered_json ToJson(const LeakageFigures& leakage) {
  return {{"tokens", leakage.tokens},
          {"leak", leakage.leak},
          {"tight", leakage.tight},
          {"paper_form", leakage.paper_form}};
}

ordered_json ToJson(const HeadFigures& figures, const DiagnosisOptions& options) {
  ordered_json completions = ordered_json::array();
  for (size_t i = 0; i < figures.completions.size(); ++i) {
    const CompletionFigures& c = figures.completions[i];
    completions.push_back({{"residual", CompletionName(options.completions[i])},
                           {"error", c.error},
                           {"error_no_subtraction", c.error_no_subtraction},
                           {"gain", figures.Gain(i)},
                           {"log_partition_error", c.log_partition_error},
                           {"residual_share", c.residual_share},
                           {"error_at_k", c.error_at}});
  }
  return {{"entropy_nats", figures.entropy_nats},
          {"entropy", figures.entropy},
          {"middle_share", figures.middle_share},
          {"recovery", figures.recovery},
          {"score_gap", figures.score_gap},
          {"exact_no_subtraction", figures.exact_no_subtraction},
          {"completions", std::move(completions)},
          {"leakage_top", ToJson(figures.top)},
          {"leakage_routed", ToJson(figures.routed)}};
}

std::span<const HeadFigures> LayerMeans(const DiagnosisRun& run,
                                        const std::vector<HeadFigures>& means, size_t layer) {
  return std::span(means).subspan(layer * run.query_heads, run.query_heads);
}

std::string Cell(double value) {
  return std::isfinite(value) ? fmt::format("{:.7g}", value) : std::string();
}

std::string TableCell(double value, int width, int digits) {
  return std::isfinite(value) ? fmt::format("{:>{}.{}f}", value, width, digits)
                              : fmt::format("{:>{}}", "-", width);
}

// A share of which small values matter.
std::string ShareCell(double value) {
  return std::isfinite(value) ? fmt::format("{:>10.2g}", value) : fmt::format("{:>10}", "-");
}

// The smallest, middle and largest of `ks`, as indices.
std::vector<size_t> ShownKs(const DiagnosisOptions& options) {
  std::vector<size_t> shown = {0};
  for (const size_t i : {options.ks.size() / 2, options.ks.size() - 1}) {
    if (i != shown.back()) shown.push_back(i);
  }
  return shown;
}

std::string TableRow(const std::string& label, const HeadFigures& figures,
                     const DiagnosisOptions& options) {
  std::string row = fmt::format("{:<6}", label) + TableCell(figures.entropy_nats, 7, 2) +
                    TableCell(figures.entropy, 7, 2) + TableCell(figures.middle_share, 8, 2);
  for (const size_t i : ShownKs(options)) row += TableCell(figures.recovery[i], 8, 2);
  row += TableCell(figures.score_gap, 7, 2) + ShareCell(figures.top.leak) +
         ShareCell(figures.routed.leak);
  for (const CompletionFigures& c : figures.completions) row += TableCell(c.error, 9, 3);
  return row + "\n";
}

std::string TableHead(const DiagnosisOptions& options) {
  std::string head = fmt::format("{:<6}{:>7}{:>7}{:>8}", "layer", "H_mid", "/log n", "middle");
  for (const size_t i : ShownKs(options)) {
    head += fmt::format("{:>8}", fmt::format("C({})", options.ks[i]));
  }
  head += fmt::format("{:>7}{:>10}{:>10}", "gap", "off top", "off pages");
  for (const Completion completion : options.completions) {
    head += fmt::format("{:>9}", CompletionName(completion));
  }
  return head + "\n";
}

// The paper's Table 3, a line a completion.
std::string ErrorTable(const HeadFigures& all, const DiagnosisOptions& options) {
  std::string table = fmt::format("{:<10}{:>10}{:>16}{:>10}{:>14}{:>12}\n", "residual", "error",
                                  "no subtraction", "gain", "log-Z error", "share");
  for (size_t i = 0; i < options.completions.size(); ++i) {
    const CompletionFigures& c = all.completions[i];
    table += fmt::format("{:<10}", CompletionName(options.completions[i])) +
             TableCell(c.error, 10, 3) + TableCell(c.error_no_subtraction, 16, 3) +
             TableCell(all.Gain(i), 10, 3) + TableCell(c.log_partition_error, 14, 3) +
             TableCell(c.residual_share, 12, 3) + "\n";
  }
  return table + fmt::format("{:<10}{:>10}", "true rest", "0.000") +
         TableCell(all.exact_no_subtraction, 16, 3) + "\n";
}

}  // namespace

ordered_json ToJson(const DiagnosisRun& run, const DiagnosisOptions& options) {
  const std::vector<HeadFigures> means = run.HeadMeans();
  ordered_json layers = ordered_json::array();
  for (size_t layer = 0; layer < run.layers.size(); ++layer) {
    ordered_json heads = ordered_json::array();
    for (const HeadFigures& head : LayerMeans(run, means, layer)) {
      heads.push_back(ToJson(head, options));
    }
    layers.push_back({{"layer", run.layers[layer]},
                      {"mean", ToJson(MeanFigures(LayerMeans(run, means, layer)), options)},
                      {"heads", std::move(heads)}});
  }
  return {{"prompt_tokens", run.n_prompt},
          {"positions", run.n_positions},
          {"tokens", run.tokens},
          {"fraction", options.fraction},
          {"sinks", options.anchors.sinks},
          {"tail", options.anchors.tail},
          {"budget", run.budget},
          {"ks", options.ks},
          {"sample_tokens", options.sample_tokens},
          {"routed_pages", options.routing.pages},
          {"routed_tokens", options.routing.tokens},
          {"seed", options.seed},
          {"local_layers", run.local_layers},
          {"mean", ToJson(MeanFigures(means), options)},
          {"layers", std::move(layers)}};
}

std::string PointsCsv(const DiagnosisRun& run, const DiagnosisOptions& options) {
  std::string csv = "position,layer,head,entropy_nats,entropy,middle_share,score_gap";
  for (int64_t k : options.ks) csv += fmt::format(",recovery_{}", k);
  csv += ",leak_top,leak_routed,exact_no_subtraction";
  for (const Completion completion : options.completions) {
    const std::string_view name = CompletionName(completion);
    csv +=
        fmt::format(",{0}_error,{0}_error_no_subtraction,{0}_log_partition_error,{0}_share", name);
  }
  csv += '\n';
  for (int64_t position = 0; position < run.n_positions; ++position) {
    for (size_t layer = 0; layer < run.layers.size(); ++layer) {
      for (int head = 0; head < run.query_heads; ++head) {
        const HeadFigures& f = run.At(position, layer, head);
        std::vector<double> cells = {f.entropy_nats, f.entropy, f.middle_share, f.score_gap};
        cells.insert(cells.end(), f.recovery.begin(), f.recovery.end());
        cells.insert(cells.end(), {f.top.leak, f.routed.leak, f.exact_no_subtraction});
        for (const CompletionFigures& c : f.completions) {
          cells.insert(cells.end(),
                       {c.error, c.error_no_subtraction, c.log_partition_error, c.residual_share});
        }
        csv += fmt::format("{},{},{}", position, run.layers[layer], head);
        for (double cell : cells) csv.append(1, ',').append(Cell(cell));
        csv += '\n';
      }
    }
  }
  return csv;
}

std::string DiagnosisTable(const DiagnosisRun& run, const DiagnosisOptions& options) {
  const std::vector<HeadFigures> means = run.HeadMeans();
  const HeadFigures all = MeanFigures(means);
  std::string table = TableHead(options);
  for (size_t layer = 0; layer < run.layers.size(); ++layer) {
    table += TableRow(std::to_string(run.layers[layer]), MeanFigures(LayerMeans(run, means, layer)),
                      options);
  }
  table += TableRow("all", all, options) + "\n";
  return table + ErrorTable(all, options);
}

}  // namespace winnow
