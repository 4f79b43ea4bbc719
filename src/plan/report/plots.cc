#include "plan/report/plots.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "plan/report/format.h"

namespace flambeau::plan {
namespace {

// A part of the width, as a percentage for an attribute.
std::string percent(double fraction) {
  return fmt::format("{:.3f}%", std::clamp(std::isfinite(fraction) ? 100 * fraction : 0.0, 0.0, 100.0));
}

std::string open_svg(const PlotText& text, std::string_view style, int height) {
  return fmt::format(R"(<svg class="{}" width="100%" height="{}" role="img" aria-labelledby="{}-t {}-d">)"
                     "\n<title id=\"{}-t\">{}</title><desc id=\"{}-d\">{}</desc>\n",
                     style, height, text.id, text.id, text.id, escape(text.title), text.id, escape(text.description));
}

// In parts of the least width of a page that shows labels (52 rem).
constexpr double kLetter = 0.0095;

bool has_room(std::string_view label, double part) { return part > kLetter * static_cast<double>(width_of(label) + 1); }

// The pieces from the left, a hair's breadth apart, with the labels that have room.
std::string pieces_svg(std::span<const Piece> pieces, double scale, int y, int height) {
  std::string svg;
  double start = 0;
  for (const Piece& piece : pieces) {
    const double part = std::isfinite(piece.value) ? std::max(piece.value, 0.0) / scale : 0;
    if (part <= 0) continue;
    svg += fmt::format(R"(<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>)", piece.style,
                       percent(start), y, percent(std::min(part, 1 - start)), height, escape(piece.name));
    if (!piece.label.empty() && has_room(piece.label, part)) {
      svg += fmt::format(R"(<text class="in {}-text" x="{}" y="{}" text-anchor="middle">{}</text>)", piece.style,
                         percent(start + part / 2), y + height / 2 + 4, escape(piece.label));
    }
    svg += "\n";
    start = std::min(1.0, start + part);
  }
  return svg;
}

// Distances of lines on an axis: 1, 2 or 5 times a power of ten, at most five lines.
double tick_step(double scale) {
  const double rough = scale / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string tick_label(double value, double step) {
  const int decimals = step >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
  return fixed(value, decimals);
}

constexpr int kPlotTop = 20, kPlotHeight = 220, kPlotBottom = 24;

// From the top of the plot, in pixels.
double y_of(double value, double scale) { return kPlotTop + kPlotHeight * (1 - std::clamp(value / scale, 0.0, 1.0)); }

// The outline of the samples as steps, in a square of 1,000 x the plot's height that is stretched to the width.
std::string area_path(const Area& area) {
  const double width = 1000.0 / static_cast<double>(area.samples.size());
  std::string line;
  for (size_t i = 0; i < area.samples.size(); ++i) {
    const double y = y_of(area.samples[i], area.scale) - kPlotTop;
    line += fmt::format("{}{:.1f} {:.1f}H{:.1f}", i == 0 ? "M" : "L", width * static_cast<double>(i), y,
                        width * static_cast<double>(i + 1));
  }
  return fmt::format(R"(<svg x="0" y="{}" width="100%" height="{}" viewBox="0 0 1000 {}" preserveAspectRatio="none">)"
                     R"(<path class="area" d="{}V{}H0Z"/><path class="outline" d="{}"/></svg>)"
                     "\n",
                     kPlotTop, kPlotHeight, kPlotHeight, line, kPlotHeight, line);
}

// Where a text stands so that it stays within the plot.
std::string_view anchor_at(double place) { return place < 0.15 ? "start" : place > 0.85 ? "end" : "middle"; }

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  for (char c : clean(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string stacked_bar(const PlotText& text, const StackedBar& bar) {
  constexpr int kTop = 22, kHeight = 40, kBottom = kTop + kHeight;
  const bool beyond = bar.limit > 0 && bar.total > bar.limit;
  std::string svg = open_svg(text, "plot", kBottom + (beyond ? 26 : 6));
  svg += fmt::format(R"(<rect class="track" x="0" y="{}" width="100%" height="{}"/>)"
                     "\n",
                     kTop, kHeight);
  svg += pieces_svg(bar.pieces, bar.scale, kTop, kHeight);
  if (bar.limit > 0) {
    const double place = bar.limit / bar.scale, total = bar.total / bar.scale;
    const std::string x = percent(place);
    svg += fmt::format(R"(<line class="limit-halo" x1="{}" x2="{}" y1="{}" y2="{}"/>)", x, x, kTop, kBottom);
    svg += fmt::format(R"(<line class="limit" x1="{}" x2="{}" y1="{}" y2="{}"/>)", x, x, kTop - 6, kBottom + 6);
    svg += fmt::format(R"(<text class="limit-text" x="{}" y="12" text-anchor="{}">{}</text>)", x, anchor_at(place),
                       escape(bar.limit_label));
    if (beyond) {
      svg += fmt::format(R"(<line class="limit" x1="{}" x2="{}" y1="{}" y2="{}"/>)", x, percent(total), kBottom + 5,
                         kBottom + 5);
      svg += fmt::format(R"(<text class="limit-text" x="100%" y="{}" text-anchor="end">{}</text>)", kBottom + 21,
                         escape(bar.beyond_label));
    } else if (has_room(bar.left_label, place - total)) {
      svg += fmt::format(R"(<text class="in soft" x="{}" y="{}" text-anchor="middle">{}</text>)",
                         percent((place + total) / 2), kTop + kHeight / 2 + 4, escape(bar.left_label));
    }
    svg += "\n";
  }
  return svg + "</svg>\n";
}

std::string bar_rows(const PlotText& text, std::span<const BarRow> rows, double scale) {
  constexpr int kRow = 40, kBarTop = 18, kBarHeight = 12;
  constexpr size_t kName = 36;  // letters that fit beside the figure on a telephone
  std::string svg = open_svg(text, "plot", kRow * static_cast<int>(rows.size()));
  int y = 0;
  for (const BarRow& row : rows) {
    svg += fmt::format(R"(<text x="0" y="{}">{}</text><text class="figure" x="100%" y="{}" text-anchor="end">{}</text>)",
                       y + 12, escape(shorten(clean(row.name), kName)), y + 12, escape(row.figure));
    svg += fmt::format(R"(<rect class="track" x="0" y="{}" width="100%" height="{}"/>)"
                       "\n",
                       y + kBarTop, kBarHeight);
    svg += pieces_svg(row.pieces, scale, y + kBarTop, kBarHeight);
    y += kRow;
  }
  return svg + "</svg>\n";
}

std::string area_plot(const PlotText& text, const Area& area) {
  constexpr int kBottom = kPlotTop + kPlotHeight;
  std::string labels, svg = open_svg(text, "plot", kBottom + kPlotBottom);
  const double step = tick_step(area.scale);
  for (int i = 0; i * step <= area.scale; ++i) {
    const double y = y_of(i * step, area.scale);
    svg += fmt::format(R"(<line class="grid" x1="0" x2="100%" y1="{:.1f}" y2="{:.1f}"/>)", y, y);
    labels += fmt::format(R"(<text x="100%" y="{:.1f}" text-anchor="end">{}{}</text>)", y + 4, tick_label(i * step, step),
                          i == 0 ? " " + escape(area.unit) : "");
  }
  svg += "\n" + area_path(area);
  for (int quarter = 0; quarter <= 4; ++quarter) {
    const std::string_view anchor = quarter == 0 ? "start" : quarter == 4 ? "end" : "middle";
    svg += fmt::format(R"(<text class="axis" x="{}%" y="{}" text-anchor="{}">{}%</text>)", 25 * quarter, kBottom + 17,
                       anchor, 25 * quarter);
  }
  const double limit_y = y_of(area.limit, area.scale), peak_y = y_of(area.peak.second, area.scale);
  if (area.limit > 0) {
    // At the side where the peak is not.
    const bool right = area.peak.first < 0.5;
    svg += fmt::format(R"(<line class="limit dashed" x1="0" x2="100%" y1="{:.1f}" y2="{:.1f}"/>)", limit_y, limit_y);
    svg += fmt::format(R"(<text class="limit-text halo" x="{}" y="{:.1f}" text-anchor="{}">{}</text>)", right ? "100%" : "0",
                       limit_y - 6, right ? "end" : "start", escape(area.limit_label));
  }
  // Above the peak, or below where the line of the limit would cross it.
  const bool crossed = area.limit > 0 && peak_y > limit_y && peak_y - limit_y < 26;
  svg += fmt::format(R"(<circle class="peak" cx="{}" cy="{:.1f}" r="3.5"/>)", percent(area.peak.first), peak_y);
  svg += fmt::format(R"(<text class="halo figure" x="{}" y="{:.1f}" text-anchor="{}">{}</text>)", percent(area.peak.first),
                     crossed ? peak_y + 20 : peak_y - 9, anchor_at(area.peak.first), escape(area.peak_label));
  return fmt::format(
      "<div class=\"with-axis\"><svg class=\"plot axis\" width=\"100%\" height=\"{}\" "
      "aria-hidden=\"true\">{}</svg>\n{}</svg></div>\n",
      kBottom + kPlotBottom, labels, svg);
}

}  // namespace flambeau::plan
