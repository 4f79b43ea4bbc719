// The report as one page. It is XML as well as HTML: tags are closed, text and attributes are escaped.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "plan/report/facts.h"
#include "plan/report/format.h"
#include "plan/report/plots.h"
#include "plan/report/report.h"
#include "plan/report/style.h"

namespace flambeau::plan {
namespace {

constexpr size_t kMostBars = 12;  // collectives drawn; the table has all

double as_double(int64_t value) { return static_cast<double>(value); }

std::string style_of(MemoryKind kind) { return fmt::format("k{}", static_cast<int>(kind)); }

// A figure as a cell: it may say "<0.01".
std::string cell(double value, const Unit& unit) { return escape(in_unit(value, unit)); }

std::string swatch(std::string_view style) { return fmt::format(R"(<i class="swatch {}"></i>)", style); }

std::string capitalized(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// A table of HTML cells; a column whose title ends in '#' holds figures.
class HtmlTable {
 public:
  explicit HtmlTable(std::vector<std::string> titles, std::string_view style = "wide") {
    out_ = fmt::format("<div class=\"scroll\"><table class=\"{}\">\n<thead><tr>", style);
    for (std::string& title : titles) {
      figures_.push_back(title.ends_with('#'));
      if (figures_.back()) title.pop_back();
      out_ += fmt::format("<th{}>{}</th>", figures_.back() ? " class=\"n\"" : "", escape(title));
    }
    out_ += "</tr></thead>\n<tbody>\n";
  }
  // Cells are markup; `styles` are classes by column, besides those of figures.
  void add(const std::vector<std::string>& cells, const std::vector<std::string_view>& styles = {}, bool sum = false) {
    out_ += sum ? "<tr class=\"sum\">" : "<tr>";
    for (size_t c = 0; c < cells.size(); ++c) {
      std::string style(c < styles.size() ? styles[c] : "");
      if (figures_[c]) style += style.empty() ? "n" : " n";
      out_ += fmt::format("<td{}>{}</td>", style.empty() ? "" : fmt::format(" class=\"{}\"", style), cells[c]);
    }
    out_ += "</tr>\n";
  }
  std::string done() && { return std::move(out_) + "</tbody></table></div>\n"; }

 private:
  std::string out_;
  std::vector<bool> figures_;
};

class Page {
 public:
  explicit Page(const Report& report) : report_(report) {}

  std::string make() {
    head();
    for (const std::string& warning : warnings_of(report_))
      out_ += fmt::format("<p class=\"warning\"><b>Warning</b> {}</p>\n", escape(warning));
    memory();
    changes();
    over_step();
    buffers();
    collectives();
    estimate();
    how_to_read();
    out_ += fmt::format("<footer>flambeau plan: {}</footer>\n</body>\n</html>\n", escape(report_.source));
    return std::move(out_);
  }

 private:
  void heading(std::string_view text) { out_ += fmt::format("<h2>{}</h2>\n", escape(text)); }
  void note(std::string_view text) { out_ += fmt::format("<p class=\"note\">{}</p>\n", escape(text)); }
  void points(std::span<const std::string> texts) {
    out_ += "<ul class=\"points\">\n";
    for (const std::string& text : texts) out_ += fmt::format("<li>{}</li>\n", escape(text));
    out_ += "</ul>\n";
  }
  void key(std::span<const std::pair<std::string_view, std::string_view>> entries) {
    out_ += "<ul class=\"key\">";
    for (const auto& [style, name] : entries) out_ += fmt::format("<li>{}{}</li>", swatch(style), escape(name));
    out_ += "</ul>\n";
  }

  void head();
  void memory();
  void changes();
  void over_step();
  void buffers();
  void estimate();
  void collectives();
  void collective_table(std::span<const CollectiveGroup> groups);
  void how_to_read();

  const Report& report_;
  std::string out_;
};

void Page::head() {
  const bool known = report_.memory.limit > 0, fits = report_.memory.fits();
  const std::string name = escape(fmt::format("{} on {}", report_.model, report_.pod));
  out_ = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Plan: "
      "{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<h1>{}</h1>\n",
      name, kPageStyle, name);
  out_ += fmt::format("<p class=\"verdict\"><span class=\"{}\">{}</span>: {}</p>\n",
                      !known ? "soft"
                      : fits ? "fits"
                             : "not",
                      capitalized(verdict_word(report_)), escape(verdict_memory(report_)));
  out_ += "<dl class=\"figures\">\n";
  const auto figure = [&](std::string_view title, std::string_view value, std::string_view note) {
    out_ += fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", escape(title), escape(value),
                        note.empty() ? "" : fmt::format("<small>{}</small>", escape(note)));
  };
  if (known) {
    const double free = as_double(report_.memory.limit) - as_double(report_.memory.total);
    figure(fits ? "HBM left" : "HBM missing", format_bytes(std::abs(free)),
           was_compiled(report_) ? "a device, as compiled" : "a device, as computed");
  }
  figure("Step", step_text(report_), "estimate");
  figure("MFU", mfu_text(report_), "estimate");
  figure("Tokens/s/chip", rate_text(report_), "estimate");
  for (const Cost& cost : costs_of(report_))
    figure(capitalized(cost.title), cost.figure, cost.basis.empty() ? "estimate" : "estimate, " + cost.basis);
  out_ += "</dl>\n<dl class=\"facts\">\n";
  for (const auto& [title, value] : planned_rows(report_))
    out_ += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape(title), escape(value));
  out_ += "</dl>\n";
}

void Page::memory() {
  const Memory& memory = report_.memory;
  const double scale = memory_scale(memory), limit = as_double(memory.limit), base = limit > 0 ? limit : scale;
  const Unit unit = byte_unit(scale);
  heading("HBM of one device");
  note(fmt::format("By kind, at the moment of the step when most is in use{}.",
                   memory.host > 0 ? fmt::format("; besides, {} in the host's memory for each device",
                                                 format_bytes(as_double(memory.host)))
                                   : ""));
  std::vector<Piece> pieces;
  std::string description;
  HtmlTable table({"Kind", std::string(unit.name) + "#", limit > 0 ? "Of limit#" : "Of total#"}, "narrow");
  for (const auto& [kind, bytes] : memory.by_kind) {
    const std::string name(name_of(kind)), size = format_bytes(as_double(bytes));
    pieces.push_back({.name = name + ": " + size, .style = style_of(kind), .value = as_double(bytes), .label = name});
    description += fmt::format("{} {}, ", name, size);
    table.add({swatch(style_of(kind)) + name, cell(as_double(bytes), unit), format_percent(as_double(bytes) / base)},
              {"line"});
  }
  table.add({"total", cell(as_double(memory.total), unit), format_percent(as_double(memory.total) / base)}, {}, true);
  if (limit > 0) table.add({"limit", cell(limit, unit), ""});
  const double beyond = as_double(memory.total) - limit;
  out_ += stacked_bar({"hbm", "HBM of one device by kind", description + verdict_memory(report_)},
                      {.pieces = pieces,
                       .scale = scale,
                       .total = as_double(memory.total),
                       .limit = limit,
                       .limit_label = "limit " + format_bytes(limit),
                       .left_label = format_bytes(-beyond) + " left",
                       .beyond_label = format_bytes(beyond) + " beyond the limit"});
  out_ += std::move(table).done();
}

void Page::changes() {
  if (report_.changes.empty()) return;
  const Unit unit = byte_unit(memory_scale(report_.memory));
  heading(changes_title(report_));
  HtmlTable table(
      {"Change", fmt::format("HBM, {}#", unit.name), fmt::format("Saves, {}#", unit.name), "Step, estimate#", "Result"});
  for (const Change& change : report_.changes) {
    std::string what;
    for (const auto& [key, value] : change.keys)
      what += fmt::format("{}<code>{}</code>", what.empty() ? "" : "<br/>", escape(fmt::format("{} = {}", key, value)));
    if (!change.failure.empty()) {
      table.add({what, "", "", "", "<span class=\"bad\">failed</span>: " + escape(change.failure)},
                {"name", "", "", "", "name"});
      continue;
    }
    const double saved = as_double(report_.memory.total) - as_double(change.total);
    table.add({what, cell(as_double(change.total), unit), cell(saved, unit), format_seconds(change.step_s),
               change.fits ? "fits" : "does not fit"},
              {"name", "", "", "", change.fits ? "line good" : "line bad"});
  }
  out_ += std::move(table).done();
}

void Page::over_step() {
  constexpr size_t kSamples = 600;  // more than a screen resolves would only make the page large
  const Memory& memory = report_.memory;
  std::vector<double> samples = resampled(memory.over_step, kSamples);
  if (samples.empty()) return;
  const auto [at, bytes] = peak_of(memory);
  const double most = std::max(1.0, as_double(bytes)), limit = as_double(memory.limit);
  // A limit far above what is used would press the curve to the ground.
  const bool limit_shown = limit > 0 && limit <= 4 * most;
  const Unit unit = byte_unit(std::max(most, limit_shown ? limit : 0));
  for (double& sample : samples) sample /= unit.scale;
  heading("HBM over the step");
  note(fmt::format("Along the order in which the program runs, not along time{}.",
                   limit > 0 && !limit_shown ? fmt::format("; the limit, {}, is far above", format_bytes(limit)) : ""));
  out_ += area_plot(
      {"over", "HBM in use over the step",
       fmt::format("Most, {}, is in use at {} of the schedule.", format_bytes(as_double(bytes)), format_percent(at))},
      {.samples = std::move(samples),
       .scale = 1.08 * std::max(most, limit_shown ? limit : 0) / unit.scale,
       .limit = limit_shown ? limit / unit.scale : 0,
       .limit_label = "limit " + format_bytes(limit),
       .unit = std::string(unit.name),
       .peak = {at, as_double(bytes) / unit.scale},
       .peak_label = format_bytes(as_double(bytes))});
}

void Page::buffers() {
  const std::vector<Buffer>& buffers = report_.memory.largest;
  if (buffers.empty()) return;
  int64_t most = 0;
  for (const Buffer& buffer : buffers) most = std::max(most, buffer.bytes);
  const Unit unit = byte_unit(as_double(most));
  heading("Largest buffers");
  note(
      "Padding is the part of a buffer that its elements do not fill; at the peak are those that live when most is in use.");
  HtmlTable table({"Name", "Shape, one device", "Kind", std::string(unit.name) + "#", "Padding#", "At the peak"});
  for (const Buffer& b : buffers) {
    const std::string padding = format_percent(b.bytes > 0 ? as_double(b.padding) / as_double(b.bytes) : 0);
    table.add({escape(b.name), fmt::format("<code>{}</code>", escape(b.shape)),
               swatch(style_of(b.kind)) + std::string(name_of(b.kind)), cell(as_double(b.bytes), unit), padding,
               b.at_peak ? "yes" : "no"},
              {"name", "", "line"});
  }
  out_ += std::move(table).done();
}

void Page::estimate() {
  const StepParts parts = step_parts(report_);
  const double drawn = parts.compute + parts.memory + parts.exposed;
  const double scale = std::max({drawn, parts.flops_bound, parts.hbm_bound, parts.link_bound});
  const Unit unit = time_unit(scale);
  const Work& work = report_.work;
  heading("Step time: an estimate");
  note(
      "Nothing here was measured. The first bar is the estimated step; the others are what each resource would take alone, "
      "and the step "
      "cannot be shorter than the first two of them.");
  if (is_known(scale)) {
    const auto in_time = [&](double seconds) { return fmt::format("{} {}", in_unit(seconds, unit), unit.name); };
    const auto label = [&](std::string_view name, double seconds) { return fmt::format("{} {}", name, in_time(seconds)); };
    const auto alone = [&](std::string_view name, std::string_view style, double seconds) {
      return BarRow{std::string(name),
                    in_time(seconds),
                    {{.name = label(name, seconds), .style = std::string(style), .value = seconds}}};
    };
    const BarRow step{"step, estimate",
                      in_time(report_.estimate.step_s),
                      {{.name = label("compute", parts.compute), .style = "compute", .value = parts.compute},
                       {.name = label("exposed memory traffic", parts.memory), .style = "memory", .value = parts.memory},
                       {.name = label("exposed communication", parts.exposed), .style = "exposed", .value = parts.exposed}}};
    const std::vector<BarRow> rows = {step, alone("FLOPs / peak", "compute", parts.flops_bound),
                                      alone("bytes / HBM bandwidth", "memory", parts.hbm_bound),
                                      alone("all communication, alone", "k6", parts.link_bound)};
    constexpr std::pair<std::string_view, std::string_view> kKey[] = {
        {"compute", "compute: matrix products"}, {"memory", "exposed memory traffic"}, {"exposed", "exposed communication"}};
    out_ += bar_rows(
        {"step", "Estimated step time by its parts, and its lower bounds",
         fmt::format("Step {}: {}, {}, {}", step.figure, step.pieces[0].name, step.pieces[1].name, step.pieces[2].name)},
        rows, scale);
    key(kKey);
  }
  HtmlTable table({"Part", fmt::format("Estimate, {}#", unit.name), "Of step#", "From"});
  const auto add = [&](std::string_view name, double seconds, const std::string& from, bool sum = false) {
    const bool relative = is_known(report_.estimate.step_s);
    table.add(
        {escape(name), cell(seconds, unit), relative ? format_percent(seconds / report_.estimate.step_s) : "", escape(from)},
        {"line"}, sum);
  };
  const std::string peak =
      is_known(report_.peak_flops) ? fmt::format(" at a peak of {}", format_scaled(report_.peak_flops, "FLOP/s")) : "";
  add("compute", parts.compute, fmt::format("{} of matrix products", format_scaled(work.flops, "FLOP")));
  add("exposed memory traffic", parts.memory, "what nothing hides of it");
  add("exposed communication", parts.exposed, "collectives during which nothing is computed");
  add("step", report_.estimate.step_s, "", true);
  add("at least, by FLOPs", parts.flops_bound, format_scaled(work.flops, "FLOP") + peak);
  add("at least, by bytes", parts.hbm_bound, format_bytes(work.hbm_bytes) + " of HBM traffic");
  if (parts.host_bound > 0)
    add("at least, to the host and back", parts.host_bound, format_bytes(as_double(report_.memory.host)) + " in the host's memory");
  add("all communication, alone", parts.link_bound, format_bytes(work.collective_bytes) + " of collectives");
  out_ += std::move(table).done();
  if (is_known(work.flops) && is_known(report_.model_flops_causal)) {
    note(fmt::format(
        "Causal MFU counts the model's own {}, {} of what the program does; the rest is recomputed or not of the model.",
        format_scaled(report_.model_flops_causal, "FLOP"), format_percent(report_.model_flops_causal / work.flops)));
  }
  if (report_.estimate.assumptions.empty()) return;
  out_ += "<h3>Assumptions</h3>\n";
  points(report_.estimate.assumptions);
}

void Page::collectives() {
  heading("Collectives of one device in a step");
  const std::vector<CollectiveGroup> groups = largest_first(report_.collectives);
  if (groups.empty()) {
    note("None.");
    return;
  }
  std::vector<CollectiveGroup> bars;  // by kind and axes, wherever they stand
  for (const CollectiveGroup& group : groups) {
    const auto same =
        std::ranges::find_if(bars, [&](const CollectiveGroup& b) { return b.kind == group.kind && b.axes == group.axes; });
    if (same == bars.end()) {
      bars.push_back(group);
      continue;
    }
    same->bytes += group.bytes;
    same->overlapped += group.overlapped;
  }
  bars = largest_first(std::move(bars));
  if (bars.size() > kMostBars) bars.resize(kMostBars);
  std::vector<BarRow> rows;
  std::string description;
  for (const CollectiveGroup& bar : bars) {
    const double bytes = is_known(bar.bytes) ? bar.bytes : 0, hidden = bytes * overlapped_part(bar);
    const std::string name = fmt::format("{} over {}", bar.kind, axes_text(bar)), size = format_bytes(bar.bytes);
    rows.push_back({name,
                    size,
                    {{.name = "overlapped: " + format_bytes(hidden), .style = "hidden", .value = hidden},
                     {.name = "exposed: " + format_bytes(bytes - hidden), .style = "exposed", .value = bytes - hidden}}});
    description += fmt::format("{} {}. ", name, size);
  }
  constexpr std::pair<std::string_view, std::string_view> kKey[] = {{"hidden", "overlapped by compute"},
                                                                    {"exposed", "not overlapped"}};
  out_ += bar_rows({"coll", "Bytes of collectives by kind and axes of the mesh", description}, rows,
                   std::max(1.0, is_known(bars[0].bytes) ? bars[0].bytes : 0));
  key(kKey);
  collective_table(groups);
}

void Page::collective_table(std::span<const CollectiveGroup> groups) {
  const CollectiveGroup sum = sum_of(groups);
  const Unit unit = byte_unit(std::isfinite(sum.bytes) ? sum.bytes : 0);
  HtmlTable table({"Kind", "Axes (devices)", "Type", "Where", "Times#", std::string(unit.name) + "#", "Overlapped#"});
  const auto add = [&](const CollectiveGroup& g, std::string_view kind, std::string_view axes, bool is_sum) {
    table.add({escape(kind), escape(axes), escape(g.type), escape(g.place), format_count(g.count), cell(g.bytes, unit),
               format_percent(overlapped_part(g))},
              {"line"}, is_sum);
  };
  for (const CollectiveGroup& group : groups) add(group, group.kind, axes_text(group), false);
  add(sum, "total", "", true);
  out_ += std::move(table).done();
}

void Page::how_to_read() {
  heading("How to read this page");
  const std::vector<std::string> texts = {
      was_compiled(report_) ? "Memory is the compiler's: TPU's compiler laid out the very program that training runs, for "
                              "this pod, and these are its buffers."
                            : "Memory is computed from the recorded program and the plan, without TPU's compiler: expect it "
                              "to differ by some percent.",
      "Everything is of one device, unless it says chip; some chips are two devices. One GiB is 2^30 bytes.",
      "HBM counts what a step is given (parameters, optimizer states, batch) and what it makes; results that replace what "
      "was given are not counted twice.",
      "Bytes of a collective are those of the larger of what it takes and what it gives. Overlapped is the part that runs "
      "while something is computed.",
      "Times are estimates from the work of the program and the figures under Assumptions; MFU, tokens per second, days and "
      "prices follow from them. "
      "MFU is the model's own FLOPs over what the chip could do in the step, as TorchTitan and flambeau train count them: attention "
      "without a discount for the causal mask. Causal MFU has the discount.",
      "Beyond FLOPs / peak and bytes / bandwidth no program is faster: a step near the larger of them leaves little to gain "
      "without less work."};
  points(texts);
}

}  // namespace

std::string to_html(const Report& report) { return Page(report).make(); }

}  // namespace flambeau::plan
