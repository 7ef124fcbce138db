// The figures of the papers; each names the one that it repeats.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "eval/diagnosis_report.h"
#include "eval/svg_plot.h"

namespace winnow {
namespace {

constexpr char kEntropy[] = "H_mid / log|mid|";
constexpr char kError[] = "relative L1 error";
constexpr int kBins = 41;

class Figures {
 public:
  Figures(const DiagnosisRun& run, const DiagnosisOptions& options, const std::string& title)
      : run_(run), options_(options), title_(title), heads_(run.HeadMeans()) {
    by_entropy_.resize(heads_.size());
    std::iota(by_entropy_.begin(), by_entropy_.end(), size_t{0});
    std::erase_if(by_entropy_, [&](size_t i) { return !std::isfinite(heads_[i].entropy); });
    std::stable_sort(by_entropy_.begin(), by_entropy_.end(),
                     [&](size_t a, size_t b) { return heads_[a].entropy < heads_[b].entropy; });
  }

  std::vector<FigureFile> All() const {
    return {{"entropy_map.svg", EntropyMap()},
            {"residual_share.svg", ResidualShares()},
            {"gain.svg", Gains()},
            {"fixed_budget.svg", FixedBudgetErrors()},
            {"log_partition_error.svg", LogPartitionErrors()},
            {"subtraction.svg", Subtraction()},
            {"mass_recovery.svg", Recovery()},
            {"error_quartiles.svg", ErrorQuartiles()},
            {"leakage.svg", Leakage()}};
  }

 private:
  std::string Name(size_t completion) const {
    return std::string(CompletionName(options_.completions[completion]));
  }
  std::string Draw(const std::string& what, const std::vector<Panel>& panels, int columns) const {
    return DrawSvg(title_, what, panels, columns);
  }

  // A point a layer and head.
  template <typename XOf, typename YOf>
  Series Scatter(const std::string& name, const XOf& x_of, const YOf& y_of) const {
    Series series{.name = name};
    for (const HeadFigures& head : heads_) {
      series.x.push_back(x_of(head));
      series.y.push_back(y_of(head));
    }
    return series;
  }
  template <typename YOf>
  Series AgainstEntropy(const std::string& name, const YOf& y_of) const {
    return Scatter(
        name, [](const HeadFigures& head) { return head.entropy; }, y_of);
  }

  // Residual figure 6 (a).
  std::string EntropyMap() const {
    HeatMap heat{.rows = std::ssize(run_.layers), .columns = run_.query_heads};
    for (const HeadFigures& head : heads_) heat.values.push_back(head.entropy);
    const std::string rows = run_.local_layers.empty() ? "layer" : "global layer, in order";
    return Draw("entropy of the middle",
                {{.title = kEntropy, .x = {"query head"}, .y = {rows}, .heat = std::move(heat)}},
                1);
  }

  // Residual figure 6 (b), a panel a completion.
  std::string ResidualShares() const {
    return Draw("estimated residual share", PerCompletion([&](size_t i) {
                  return Panel{.title = Name(i),
                               .x = {kEntropy},
                               .y = {"share of the normaliser"},
                               .series = {AgainstEntropy("", [i](const HeadFigures& head) {
                                 return head.completions[i].residual_share;
                               })}};
                }),
                3);
  }

  // Residual figure 1, a panel a completion.
  std::string Gains() const {
    return Draw("gain of completion", PerCompletion([&](size_t i) {
                  return Panel{.title = Name(i),
                               .x = {kEntropy},
                               .y = {"e(none) - e"},
                               .series = {AgainstEntropy(
                                   "", [i](const HeadFigures& head) { return head.Gain(i); })}};
                }),
                3);
  }

  // Residual figures 9 and 10: errors of selection and completion with the same retrieved set.
  std::string FixedBudgetErrors() const {
    return Draw(fmt::format("errors with {} retrieved tokens", run_.budget),
                PerCompletion([&](size_t i) {
                  const auto error_of = [](size_t c) {
                    return [c](const HeadFigures& head) { return head.completions[c].error; };
                  };
                  return Panel{.title = Name(i),
                               .x = {kEntropy},
                               .y = {kError},
                               .series = {AgainstEntropy("none", error_of(0)),
                                          AgainstEntropy(Name(i), error_of(i))}};
                }),
                3);
  }

  // Residual figure 3.
  std::string LogPartitionErrors() const {
    return Histograms(
        "log-partition error", "log Z^ - log Z of the unread",
        [](const HeadFigures& head, size_t i) { return head.completions[i].log_partition_error; });
  }

  // Residual figure 4.
  std::string Subtraction() const {
    return Histograms("error with less without subtraction", "e - e(no subtraction)",
                      [](const HeadFigures& head, size_t i) {
                        return head.completions[i].error - head.completions[i].error_no_subtraction;
                      });
  }

  // Residual figure 7: heads at the quintiles of entropy.
  std::string Recovery() const {
    Panel panel{.title = "C_mid(K)", .x = {"K", true}, .y = {"share of the middle's mass"}};
    for (int part = 0; part <= 4 && !by_entropy_.empty(); ++part) {
      const size_t i = by_entropy_[(by_entropy_.size() - 1) * part / 4];
      const HeadFigures& head = heads_[i];
      panel.series.push_back(
          {.name = fmt::format("layer {} head {}: {:.2f}", run_.layers[i / run_.query_heads],
                               i % run_.query_heads, head.entropy),
           .mark = Mark::kLine,
           .x = {options_.ks.begin(), options_.ks.end()},
           .y = head.recovery});
    }
    return Draw("mass recovery", {std::move(panel)}, 1);
  }

  // Residual figure 8: the error against K for quarters of the heads, from low to high entropy.
  std::string ErrorQuartiles() const {
    std::vector<Panel> panels;
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      const size_t begin = by_entropy_.size() * quarter / 4;
      const size_t end = by_entropy_.size() * (quarter + 1) / 4;
      if (begin == end) continue;
      std::vector<HeadFigures> members;
      for (size_t i = begin; i < end; ++i) members.push_back(heads_[by_entropy_[i]]);
      const HeadFigures mean = MeanFigures(members);
      Panel panel{.title = fmt::format("entropy {:.2f} to {:.2f}", members.front().entropy,
                                       members.back().entropy),
                  .x = {"K", true},
                  .y = {kError}};
      for (size_t i = 0; i < options_.completions.size(); ++i) {
        panel.series.push_back({.name = Name(i),
                                .mark = Mark::kLine,
                                .x = {options_.ks.begin(), options_.ks.end()},
                                .y = mean.completions[i].error_at});
      }
      panels.push_back(std::move(panel));
    }
    return Draw("error against K by quarter of entropy", panels, 2);
  }

  // Vashista 8: what lies off the set that was read, against the gap of the scores.
  std::string Leakage() const {
    const auto gap = [](const HeadFigures& head) { return head.score_gap; };
    return Draw(
        "leakage",
        {{.title = "mass off the set that was read",
          .x = {"score gap"},
          .y = {"leakage", true},
          .series = {Scatter(fmt::format("best {} tokens", run_.budget), gap,
                             [](const HeadFigures& head) { return head.top.leak; }),
                     Scatter(fmt::format("best {} of {} pages", options_.routing.tokens,
                                         options_.routing.pages),
                             gap, [](const HeadFigures& head) { return head.routed.leak; })}}},
        1);
  }

  // Panels of all completions but none.
  template <typename PanelOf>
  std::vector<Panel> PerCompletion(const PanelOf& panel_of) const {
    std::vector<Panel> panels;
    for (size_t i = 1; i < options_.completions.size(); ++i) panels.push_back(panel_of(i));
    return panels;
  }

  // Over all layers, heads and positions, one range for all panels.
  template <typename ValueOf>
  std::string Histograms(const std::string& what, const std::string& label,
                         const ValueOf& value_of) const {
    std::vector<std::vector<double>> values(options_.completions.size());
    double extent = 0;
    for (size_t i = 1; i < values.size(); ++i) {
      for (const HeadFigures& head : run_.figures) {
        const double value = value_of(head, i);
        if (!std::isfinite(value)) continue;
        values[i].push_back(value);
        extent = std::max(extent, std::abs(value));
      }
    }
    if (extent == 0) extent = 1;
    return Draw(what, PerCompletion([&](size_t i) {
                  return Panel{.title = Name(i),
                               .x = {label},
                               .y = {"layers, heads, positions"},
                               .series = {Histogram(values[i], -extent, extent, kBins)}};
                }),
                3);
  }

  const DiagnosisRun& run_;
  const DiagnosisOptions& options_;
  const std::string& title_;
  std::vector<HeadFigures> heads_;  // [layers, H] means over the positions
  std::vector<size_t> by_entropy_;  // indices of `heads_`
};

}  // namespace

std::vector<FigureFile> DiagnosisFigures(const DiagnosisRun& run, const DiagnosisOptions& options,
                                         const std::string& title) {
  return Figures(run, options, title).All();
}

}  // namespace winnow
