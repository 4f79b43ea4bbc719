// Plots of a plan's page, as SVG inside HTML that needs no script.
//
// A plot is as wide as what it stands in: places along x are percentages, heights and letters are CSS pixels, so that a
// telephone shows the same letters as a screen. Colours are classes of the page's style ("k0".."k7" for kinds of memory,
// "compute", "memory", "exposed", "hidden"). Every plot has a title and a description for those who cannot see it. Internal
// to src/plan.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flambeau::plan {

// Text for HTML, between tags or within quotes: cleaned, with the five characters of markup escaped.
std::string escape(std::string_view text);

struct Piece {
  std::string name;
  std::string style;  // its class
  double value = 0;
  std::string label = {};  // written into it where there is room
};

// Names a plot to the page (`id`, unique there) and to readers.
struct PlotText {
  std::string id, title, description;
};

// Pieces side by side against a limit.
struct StackedBar {
  std::span<const Piece> pieces;
  double scale = 1;                                   // of the whole width
  double total = 0;                                   // of all pieces
  double limit = 0;                                   // 0: none
  std::string limit_label, left_label, beyond_label;  // at the limit; for what is free below it; for what exceeds it
};
std::string stacked_bar(const PlotText& text, const StackedBar& bar);

// Bars one below the other, each with its name above it to the left and its figure to the right.
struct BarRow {
  std::string name, figure;
  std::vector<Piece> pieces;
};
std::string bar_rows(const PlotText& text, std::span<const BarRow> rows, double scale);

// What is in use over time.
struct Area {
  std::vector<double> samples;  // at equal distances, in units of the axis
  double scale = 1;             // of the axis' end
  double limit = 0;             // a dashed line; 0: none
  std::string limit_label, unit;
  std::pair<double, double> peak;  // place in 0..1, height
  std::string peak_label;
};
std::string area_plot(const PlotText& text, const Area& area);

}  // namespace flambeau::plan
