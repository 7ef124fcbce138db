#include "bench/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/dtype.h"

namespace winnow {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

std::string Describe(const SweepOptions& options, const SweepSubject& subject) {
  return fmt::format("{}: {}/{} heads of {}, {}, {} layers in turn, {} threads", subject.shape,
                     options.heads.query_heads, options.heads.kv_heads, options.heads.head_dim,
                     DTypeName(options.dtype), options.n_layers, subject.n_threads);
}

double ByteShare(const SweepRow& row) {
  return static_cast<double>(row.bytes_read) / static_cast<double>(row.bytes_dense);
}

// The certificates' figures of a row; not a number for softmax.
double Gap(const SweepRow& row) { return row.certificate ? row.certificate->gap : kNotMeasured; }

// One dimension of the grid: what each of its places is called, and where a row lies.
struct Dimension {
  const char* name;
  std::string (*label)(const SweepRow& row);
  std::vector<std::string> labels;

  int64_t Find(const SweepRow& row) const {
    return std::find(labels.begin(), labels.end(), label(row)) - labels.begin();
  }
  std::string Titled(int64_t place) const { return fmt::format("{} {}", name, labels[place]); }
};

std::array<Dimension, 4> DimensionsOf(const std::vector<SweepRow>& rows) {
  std::array<Dimension, 4> dimensions = {{
      {"P", [](const SweepRow& row) { return fmt::format("{}", row.pages); }, {}},
      {"Kc", [](const SweepRow& row) { return fmt::format("{}", row.candidates); }, {}},
      {"solver",
       [](const SweepRow& row) {
         return row.iterations ? fmt::format("{} {}", row.solver, *row.iterations) : row.solver;
       },
       {}},
      {"tokens", [](const SweepRow& row) { return fmt::format("{}", row.tokens); }, {}},
  }};
  for (Dimension& dimension : dimensions) {
    for (const SweepRow& row : rows) {
      const std::string label = dimension.label(row);
      if (std::find(dimension.labels.begin(), dimension.labels.end(), label) ==
          dimension.labels.end()) {
        dimension.labels.push_back(label);
      }
    }
  }
  // Those that were swept come first: the first two become axes.
  std::stable_partition(dimensions.begin(), dimensions.end(),
                        [](const Dimension& d) { return d.labels.size() > 1; });
  return dimensions;
}

// Panels over the last two dimensions, each a heat map over the first two.
template <typename ValueOf>
std::vector<Panel> HeatMaps(const std::array<Dimension, 4>& dimensions,
                            const std::vector<SweepRow>& rows, const ValueOf& value_of) {
  const auto& [x, y, across, down] = dimensions;
  std::vector<Panel> panels;
  for (int64_t i = 0; i < std::ssize(down.labels); ++i) {
    for (int64_t j = 0; j < std::ssize(across.labels); ++j) {
      Panel panel{.title = fmt::format("{}, {}", across.Titled(j), down.Titled(i)),
                  .x = {.label = x.name, .labels = x.labels},
                  .y = {.label = y.name, .labels = y.labels},
                  .heat = {.rows = std::ssize(y.labels), .columns = std::ssize(x.labels)}};
      panel.heat.values.assign(y.labels.size() * x.labels.size(), kNotMeasured);
      for (const SweepRow& row : rows) {
        if (down.Find(row) != i || across.Find(row) != j) continue;
        panel.heat.values[y.Find(row) * panel.heat.columns + x.Find(row)] = value_of(row);
      }
      panels.push_back(std::move(panel));
    }
  }
  return panels;
}

// Dense's points are those of the rows of the first series.
Panel TimeAgainstContext(const std::vector<SweepRow>& rows, const SweepRow& last) {
  Panel panel{.title = fmt::format("P {}, Kc {}", last.pages, last.candidates),
              .x = {"tokens", true},
              .y = {"ms a layer", true},
              .series = {{.name = "dense", .mark = Mark::kLine}}};
  for (const SweepRow& row : rows) {
    if (row.pages != last.pages || row.candidates != last.candidates) continue;
    const std::string name =
        row.iterations ? fmt::format("{} {}", row.solver, *row.iterations) : row.solver;
    auto series = std::find_if(panel.series.begin(), panel.series.end(),
                               [&](const Series& s) { return s.name == name; });
    if (series == panel.series.end()) {
      panel.series.push_back({.name = name, .mark = Mark::kLine});
      series = panel.series.end() - 1;
    }
    series->x.push_back(static_cast<double>(row.tokens));
    series->y.push_back(row.sparse_ms);
    if (series == panel.series.begin() + 1) {
      panel.series[0].x.push_back(static_cast<double>(row.tokens));
      panel.series[0].y.push_back(row.dense_ms);
    }
  }
  return panel;
}

nlohmann::ordered_json CertificateJson(const SweepRow& row) {
  if (!row.certificate) return nullptr;
  const SweepCertificate& c = *row.certificate;
  return {{"gap_max", c.gap},
          {"distance_max", c.distance},
          {"value_distance_max", c.value_distance ? nlohmann::ordered_json(*c.value_distance)
                                                  : nlohmann::ordered_json(nullptr)},
          {"iterations_mean", c.iterations},
          {"converged", c.converged}};
}

nlohmann::ordered_json RowJson(const SweepRow& row) {
  return {{"n_tokens", row.tokens},
          {"P", row.pages},
          {"Kc", row.candidates},
          {"solver", row.solver},
          {"iterations", row.iterations ? nlohmann::ordered_json(*row.iterations)
                                        : nlohmann::ordered_json(nullptr)},
          {"arm", row.arm},
          {"dense_ms", row.dense_ms},
          {"sparse_ms", row.sparse_ms},
          {"ratio", row.ratio()},
          {"shares",
           {{"routing", row.routing},
            {"solver", row.solver_share},
            {"kernel", row.kernel},
            {"other", row.other}}},
          {"tokens_read", row.tokens_read},
          {"bytes_read", row.bytes_read},
          {"bytes_dense", row.bytes_dense},
          {"certificate", CertificateJson(row)}};
}

}  // namespace

std::string SweepTable(const SweepRun& run, const SweepOptions& options,
                       const SweepSubject& subject) {
  std::string table = fmt::format(
      "{}; milliseconds a layer, medians of {}\n\n{:>8} {:>4} {:>4} {:<8} {:>5} {:>8} {:>8} {:>7} "
      "{:>8} {:>7} {:>7} {:>6} {:>6} {:>9} {:>6}\n",
      Describe(options, subject), options.repetitions, "tokens", "P", "Kc", "solver", "iters",
      "dense", "sparse", "ratio", "routing", "solver", "kernel", "other", "bytes", "gap", "mean");
  for (const SweepRow& row : run.rows) {
    table += fmt::format(
        "{:>8} {:>4} {:>4} {:<8} {:>5} {:>8.2f} {:>8.3f} {:>7.2f} {:>8.2f} {:>7.2f} {:>7.2f} "
        "{:>6.2f} {:>6.3f} {:>9} {:>6}\n",
        row.tokens, row.pages, row.candidates, row.solver,
        row.iterations ? fmt::format("{}", *row.iterations) : "-", row.dense_ms, row.sparse_ms,
        row.ratio(), row.routing, row.solver_share, row.kernel, row.other, ByteShare(row),
        row.certificate ? fmt::format("{:.3g}", row.certificate->gap) : "-",
        row.certificate ? fmt::format("{:.1f}", row.certificate->iterations) : "-");
  }
  return table +
         "\nratio: dense / sparse, in turn; routing to other: shares of the sparse time; bytes: of "
         "dense's;\ngap: the largest certificate of a query head; mean: iterations taken\n";
}

nlohmann::ordered_json SweepToJson(const SweepRun& run, const SweepOptions& options,
                                   const SweepSubject& subject) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SweepRow& row : run.rows) rows.push_back(RowJson(row));
  return {{"schema", "winnow.sweep/1"},
          {"shape", subject.shape},
          {"query_heads", options.heads.query_heads},
          {"kv_heads", options.heads.kv_heads},
          {"head_dim", options.heads.head_dim},
          {"kv_type", DTypeName(options.dtype)},
          {"device", "cpu"},
          {"n_threads", subject.n_threads},
          {"n_layers", options.n_layers},
          {"repetitions", options.repetitions},
          {"complete", run.complete},
          {"rows", std::move(rows)}};
}

std::vector<FigureFile> SweepFigures(const SweepRun& run, const SweepOptions& options,
                                     const SweepSubject& subject) {
  if (run.rows.empty()) return {};
  const std::string title = Describe(options, subject);
  const std::array<Dimension, 4> dimensions = DimensionsOf(run.rows);
  const auto columns = static_cast<int>(dimensions[2].labels.size());
  std::vector<FigureFile> figures;
  const auto draw = [&](const char* name, const char* what, auto value_of) {
    figures.push_back(
        {name, DrawSvg(title, what, HeatMaps(dimensions, run.rows, value_of), columns)});
  };
  draw("time.svg", "milliseconds a layer", [](const SweepRow& row) { return row.sparse_ms; });
  draw("ratio.svg", "dense / sparse", [](const SweepRow& row) { return row.ratio(); });
  draw("routing.svg", "share of routing", [](const SweepRow& row) { return row.routing; });
  draw("solver.svg", "share of the solver", [](const SweepRow& row) { return row.solver_share; });
  draw("kernel.svg", "share of the kernel", [](const SweepRow& row) { return row.kernel; });
  draw("bytes.svg", "bytes read, of dense's", ByteShare);
  if (std::any_of(run.rows.begin(), run.rows.end(),
                  [](const SweepRow& row) { return row.certificate.has_value(); })) {
    draw("gap.svg", "log10 of the largest gap",
         [](const SweepRow& row) { return std::log10(Gap(row)); });
  }
  const Panel scaling = TimeAgainstContext(run.rows, run.rows.back());
  figures.push_back({"scaling.svg", DrawSvg(title, "time against context", {&scaling, 1}, 1)});
  return figures;
}

}  // namespace winnow
