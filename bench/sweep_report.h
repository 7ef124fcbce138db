// What a sweep measured, as a table, as JSON (docs/json.md, winnow.sweep/1) and as heat maps.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/sweep.h"
#include "eval/svg_plot.h"

namespace winnow {

// What a sweep's outputs say of the machine and the shape.
struct SweepSubject {
  std::string shape;  // as in synthetic:SHAPE
  int n_threads = 0;
};

// A line a cell.
std::string SweepTable(const SweepRun& run, const SweepOptions& options,
                       const SweepSubject& subject);

nlohmann::ordered_json SweepToJson(const SweepRun& run, const SweepOptions& options,
                                   const SweepSubject& subject);

// A heat map of each figure over the first two of P, Kc, solver with iterations, and tokens that
// were swept, in panels over the others (Vashista figure 2); and time against context (figure 1),
// at the last P and Kc. Cells that were not measured stay white.
std::vector<FigureFile> SweepFigures(const SweepRun& run, const SweepOptions& options,
                                     const SweepSubject& subject);

}  // namespace winnow
