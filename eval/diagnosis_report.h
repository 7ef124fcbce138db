// What `winnow diagnose` gives out: a record, a table of points, a table for people, and the
// papers' figures.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/diagnosis_run.h"
#include "eval/svg_plot.h"

namespace winnow {

// Every layer and head, means over the positions, and the means of them all (docs/json.md).
nlohmann::ordered_json ToJson(const DiagnosisRun& run, const DiagnosisOptions& options);

// A line for every position, layer and query head, comma-separated, with a head line; empty where a
// number is not defined.
std::string PointsCsv(const DiagnosisRun& run, const DiagnosisOptions& options);

// A line a layer, means over heads and positions, and the error table of all layers.
std::string DiagnosisTable(const DiagnosisRun& run, const DiagnosisOptions& options);

// `title` stands above each figure.
std::vector<FigureFile> DiagnosisFigures(const DiagnosisRun& run, const DiagnosisOptions& options,
                                         const std::string& title);

}  // namespace winnow
