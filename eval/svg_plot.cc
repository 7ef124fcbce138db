#include "eval/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"

namespace winnow {
namespace {

// Pixels.
constexpr double kWidth = 400;
constexpr double kHeight = 270;
constexpr double kLeft = 62;
constexpr double kRight = 14;
constexpr double kLegend = 116;  // to the right of a panel that has one
constexpr double kTop = 34;
constexpr double kBottom = 48;
constexpr double kTitle = 48;

// Okabe and Ito's palette, which the colour-blind can tell apart.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000"};

std::string Escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string Text(double x, double y, std::string_view text, std::string_view attributes) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     Escaped(text));
}

// The smallest of 1, 2 or 5 times a power of ten of which at most six fit into `range`.
double RoundStep(double range) {
  const double power = std::pow(10.0, std::floor(std::log10(range / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (power * factor) <= 6) return power * factor;
  }
  return power * 10;
}

// A range of data and where it lies on the paper.
class Scale {
 public:
  Scale(bool log, double begin_pixel, double end_pixel)
      : log_(log), begin_(begin_pixel), end_(end_pixel) {}

  bool Shows(double value) const { return std::isfinite(value) && (!log_ || value > 0); }
  void Include(double value) {
    if (!Shows(value)) return;
    low_ = std::min(low_, Along(value));
    high_ = std::max(high_, Along(value));
  }
  // After the last Include: an empty range gets one, an end on data some air.
  void Finish() {
    if (!(low_ <= high_)) low_ = 0, high_ = 1;
    if (low_ == high_) low_ -= 0.5, high_ += 0.5;
    const double air = 0.03 * (high_ - low_);
    low_ -= air;
    high_ += air;
  }
  double Pixel(double value) const {
    return begin_ + (Along(value) - low_) / (high_ - low_) * (end_ - begin_);
  }
  // Round values inside the range, on a log axis powers of ten; there its ends if they hold none.
  std::vector<double> Ticks() const {
    const double step = log_ ? std::max(1.0, RoundStep(high_ - low_)) : RoundStep(high_ - low_);
    std::vector<double> ticks;
    for (double t = std::ceil(low_ / step) * step; t <= high_; t += step) {
      ticks.push_back(log_ ? std::pow(10.0, t) : std::abs(t) < step * 1e-9 ? 0.0 : t);
    }
    if (ticks.size() < 2 && log_) ticks = {std::pow(10.0, low_), std::pow(10.0, high_)};
    return ticks;
  }

 private:
  double Along(double value) const { return log_ ? std::log10(value) : value; }

  bool log_;
  double begin_, end_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

// A panel at its place on the paper.
class PanelDrawing {
 public:
  PanelDrawing(const Panel& panel, double x, double y)
      : panel_(panel),
        x_(x),
        y_(y),
        right_(x + kWidth - kRight - (panel.series.size() < 2 ? 0 : kLegend)),
        x_scale_(panel.x.log, x + kLeft, right_),
        y_scale_(panel.y.log, y + kHeight - kBottom, y + kTop) {}

  std::string Draw() {
    out_ = Text(x_ + kLeft, y_ + kTop - 14, panel_.title, "font-weight=\"bold\"");
    FitScales();
    if (panel_.heat.rows > 0) {
      DrawHeat();
    } else {
      for (size_t i = 0; i < panel_.series.size(); ++i) DrawSeries(panel_.series[i], i);
      DrawLegend();
    }
    DrawAxes();
    return std::move(out_);
  }

 private:
  void FitScales() {
    if (panel_.heat.rows > 0) {
      x_scale_.Include(-0.5);
      x_scale_.Include(static_cast<double>(panel_.heat.columns) - 0.5);
      y_scale_.Include(-0.5);
      y_scale_.Include(static_cast<double>(panel_.heat.rows) - 0.5);
    }
    for (const Series& series : panel_.series) {
      WINNOW_CHECK(series.x.size() == series.y.size());
      for (size_t i = 0; i < series.x.size(); ++i) {
        if (!Shows(series, i)) continue;
        x_scale_.Include(series.x[i]);
        y_scale_.Include(series.y[i]);
      }
      if (series.mark == Mark::kBars) y_scale_.Include(0);
    }
    x_scale_.Finish();
    y_scale_.Finish();
  }

  bool Shows(const Series& series, size_t i) const {
    return x_scale_.Shows(series.x[i]) && y_scale_.Shows(series.y[i]);
  }

  void DrawSeries(const Series& series, size_t number) {
    const char* colour = kColours[number % kColours.size()];
    std::string path;
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!Shows(series, i)) continue;
      const double x = x_scale_.Pixel(series.x[i]);
      const double y = y_scale_.Pixel(series.y[i]);
      if (series.mark == Mark::kLine) {
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x, y);
      } else if (series.mark == Mark::kPoints) {
        out_ += fmt::format(
            "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" fill=\"{}\" fill-opacity=\"0.6\"/>\n", x,
            y, colour);
      } else {
        DrawBar(series, i, colour);
      }
    }
    if (!path.empty()) {
      out_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>\n",
                          path, colour);
    }
  }

  void DrawBar(const Series& series, size_t i, const char* colour) {
    const double space = series.x.size() < 2
                             ? 20
                             : std::abs(x_scale_.Pixel(series.x[1]) - x_scale_.Pixel(series.x[0]));
    const double base = y_scale_.Pixel(0);
    const double y = y_scale_.Pixel(series.y[i]);
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
        x_scale_.Pixel(series.x[i]) - 0.45 * space, std::min(y, base), 0.9 * space,
        std::abs(base - y), colour);
  }

  void DrawHeat() {
    const HeatMap& heat = panel_.heat;
    WINNOW_CHECK(std::ssize(heat.values) == heat.rows * heat.columns);
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (double value : heat.values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
    for (int64_t row = 0; row < heat.rows; ++row) {
      for (int64_t column = 0; column < heat.columns; ++column) {
        const double value = heat.values[row * heat.columns + column];
        if (!std::isfinite(value)) continue;
        const double share = high > low ? (value - low) / (high - low) : 0.5;
        DrawCell(row, column, share);
      }
    }
    if (low <= high) {
      out_ += Text(x_ + kWidth - kRight, y_ + kTop - 14,
                   fmt::format("light {:.3g}, dark {:.3g}", low, high), "text-anchor=\"end\"");
    }
  }

  // From light yellow to dark blue; lightness falls all the way, so that it also reads in grey.
  void DrawCell(int64_t row, int64_t column, double share) {
    const auto mix = [share](double light, double dark) {
      return static_cast<int>(std::lround(light + share * (dark - light)));
    };
    const double left = x_scale_.Pixel(static_cast<double>(column) - 0.5);
    const double top = y_scale_.Pixel(static_cast<double>(row) + 0.5);
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"#{:02x}{:02x}{:02x}\"/>\n",
        left, top, x_scale_.Pixel(static_cast<double>(column) + 0.5) - left,
        y_scale_.Pixel(static_cast<double>(row) - 0.5) - top, mix(255, 8), mix(247, 29),
        mix(204, 88));
  }

  void DrawLegend() {
    if (panel_.series.size() < 2) return;
    for (size_t i = 0; i < panel_.series.size(); ++i) {
      const double y = y_ + kTop + 12 + 13 * static_cast<double>(i);
      out_ += Text(right_ + 8, y, panel_.series[i].name,
                   fmt::format("fill=\"{}\"", kColours[i % kColours.size()]));
    }
  }

  static std::vector<std::pair<double, std::string>> TickLabels(const Axis& axis,
                                                                const Scale& scale) {
    std::vector<std::pair<double, std::string>> ticks;
    for (size_t i = 0; i < axis.labels.size(); ++i) {
      ticks.emplace_back(static_cast<double>(i), axis.labels[i]);
    }
    if (!ticks.empty()) return ticks;
    for (double tick : scale.Ticks()) ticks.emplace_back(tick, fmt::format("{:.4g}", tick));
    return ticks;
  }

  void DrawAxes() {
    const double left = x_ + kLeft;
    const double top = y_ + kTop;
    const double bottom = y_ + kHeight - kBottom;
    out_ += fmt::format(
        "<path d=\"M{:.1f} {:.1f} L{:.1f} {:.1f} L{:.1f} {:.1f}\" fill=\"none\" "
        "stroke=\"#444\"/>\n",
        left, top, left, bottom, right_, bottom);
    for (const auto& [at, label] : TickLabels(panel_.x, x_scale_)) {
      out_ += Text(x_scale_.Pixel(at), bottom + 14, label, "text-anchor=\"middle\"");
    }
    for (const auto& [at, label] : TickLabels(panel_.y, y_scale_)) {
      out_ += Text(left - 5, y_scale_.Pixel(at) + 4, label, "text-anchor=\"end\"");
    }
    out_ += Text((left + right_) / 2, bottom + 34, panel_.x.label, "text-anchor=\"middle\"");
    const double x = x_ + 13;
    const double y = (top + bottom) / 2;
    out_ +=
        Text(x, y, panel_.y.label,
             fmt::format("text-anchor=\"middle\" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y));
  }

  const Panel& panel_;
  double x_, y_;
  double right_;  // end of the plot
  Scale x_scale_, y_scale_;
  std::string out_;
};

}  // namespace

Series Histogram(std::span<const double> values, double low, double high, int bins) {
  WINNOW_CHECK(bins >= 1 && low < high, "{} bins from {} to {}", bins, low, high);
  Series series{.mark = Mark::kBars};
  const double width = (high - low) / bins;
  for (int i = 0; i < bins; ++i) {
    series.x.push_back(low + width * (i + 0.5));
    series.y.push_back(0);
  }
  for (double value : values) {
    if (!std::isfinite(value)) continue;
    const double bin = std::clamp(std::floor((value - low) / width), 0.0, bins - 1.0);
    ++series.y[static_cast<size_t>(bin)];
  }
  return series;
}

std::string DrawSvg(std::string_view title, std::string_view subtitle,
                    std::span<const Panel> panels, int columns) {
  WINNOW_CHECK(columns >= 1);
  const auto n = static_cast<int>(panels.size());
  const int rows = (n + columns - 1) / columns;
  const double width = kWidth * std::min(columns, std::max(n, 1));
  const double height = kTitle + kHeight * rows;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  out += Text(14, 20, title, "font-size=\"13\"");
  out += Text(14, 38, subtitle, "font-size=\"13\"");
  for (int i = 0; i < n; ++i) {
    const int row = i / columns;
    PanelDrawing drawing(panels[i], kWidth * (i % columns), kTitle + kHeight * row);
    out += drawing.Draw();
  }
  return out + "</svg>\n";
}

}  // namespace winnow
