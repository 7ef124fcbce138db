// Marks, ranges and text of figures.
#include "eval/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

std::string Draw(Panel panel) { return DrawSvg("title", "", {&panel, 1}, 1); }

TEST(SvgPlot, PointsThatAreNoNumbersAreLeftOut) {
  const Panel panel{.series = {{.x = {1, 2, std::nan(""), 4}, .y = {1, kInfinity, 3, 4}}}};
  EXPECT_EQ(Count(Draw(panel), "<circle"), 2u);
  EXPECT_THAT(Draw(panel), Not(HasSubstr("nan")));
}

TEST(SvgPlot, LogAxesShowPowersOfTenAndNothingBelow) {
  const Panel panel{.x = {"x"}, .y = {"y", true}, .series = {{.x = {1, 2, 3}, .y = {0, 1, 1000}}}};
  const std::string svg = Draw(panel);
  EXPECT_EQ(Count(svg, "<circle"), 2u);
  EXPECT_THAT(svg, AllOf(HasSubstr(">1<"), HasSubstr(">10<"), HasSubstr(">1000<")));
}

TEST(SvgPlot, LinesAndBarsAndLegends) {
  const Panel panel{.series = {{.name = "a & b", .mark = Mark::kLine, .x = {0, 1}, .y = {2, 3}},
                               {.name = "c", .mark = Mark::kBars, .x = {0, 1}, .y = {1, 2}}}};
  const std::string svg = Draw(panel);
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_EQ(Count(svg, "<rect"), 3u);  // the paper and two bars
  EXPECT_EQ(Count(svg, "stroke-width=\"1.6\""), 1u);
}

TEST(SvgPlot, EmptyAndOnePointPanelsAreDrawn) {
  EXPECT_THAT(Draw({}), Not(HasSubstr("nan")));
  EXPECT_THAT(Draw({.series = {{.x = {5}, .y = {5}}}}), HasSubstr("<circle"));
  EXPECT_THAT(DrawSvg("nothing", "", {}, 3), HasSubstr("</svg>"));
}

TEST(SvgPlot, HeatMapsLeaveUnknownCellsWhite) {
  const Panel panel{.heat = {.rows = 2, .columns = 2, .values = {0, 1, std::nan(""), 0.5}}};
  const std::string svg = Draw(panel);
  EXPECT_EQ(Count(svg, "<rect"), 4u);
  EXPECT_THAT(svg, HasSubstr("light 0, dark 1"));
  const Panel constant{.heat = {.rows = 1, .columns = 2, .values = {3, 3}}};
  EXPECT_EQ(Count(Draw(constant), "<rect"), 3u);
}

TEST(SvgPlot, HeatMapsNameTheirRowsAndColumns) {
  const Panel panel{.x = {.label = "P", .labels = {"8", "eg 2"}},
                    .y = {.label = "Kc", .labels = {"32"}},
                    .heat = {.rows = 1, .columns = 2, .values = {1, 2}}};
  const std::string svg = Draw(panel);
  EXPECT_THAT(svg, AllOf(HasSubstr(">8<"), HasSubstr(">eg 2<"), HasSubstr(">32<")));
  EXPECT_THAT(svg, Not(HasSubstr(">0.5<")));
}

TEST(Histogram, CountsInEqualParts) {
  const double values[] = {-9, 0, 0.4, 0.6, 1, 9, std::nan("")};
  const Series series = Histogram(values, 0, 1, 2);
  EXPECT_THAT(series.x, ElementsAre(0.25, 0.75));
  EXPECT_THAT(series.y, ElementsAre(3, 3));
}

}  // namespace
}  // namespace winnow
