// Plain figures as SVG text: points, lines, bars and heat maps, in panels side by side.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

enum class Mark : uint8_t { kPoints, kLine, kBars };

// x and y of the same length; what is not finite, or not positive on a log axis, is left out. Bars
// stand at x, one apart from the next, and begin at 0.
struct Series {
  std::string name;
  Mark mark = Mark::kPoints;
  std::vector<double> x, y;
};

struct Axis {
  std::string label;
  bool log = false;
  std::vector<std::string> labels;  // of a heat map's columns or rows; none: their numbers
};

// Values in [rows, columns], the first row at the bottom; what is not finite stays white.
struct HeatMap {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;
};

struct Panel {
  std::string title;
  Axis x, y;
  std::vector<Series> series;  // named ones appear in a legend if there are several
  HeatMap heat;                // in place of series, if it has rows
};

// Counts of the finite values in `bins` equal parts of [low, high]; values beyond fall into the
// first and the last. bins >= 1, low < high.
Series Histogram(std::span<const double> values, double low, double high, int bins);

struct FigureFile {
  std::string name;  // "entropy_map.svg"
  std::string svg;
};

// One document: two lines of text, and `columns` panels in a row. Names may hold any UTF-8.
std::string DrawSvg(std::string_view title, std::string_view subtitle,
                    std::span<const Panel> panels, int columns);

}  // namespace winnow
