// The report in lines for a terminal or a pipe.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "plan/report/facts.h"
#include "plan/report/format.h"
#include "plan/report/report.h"

namespace flambeau::plan {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kIndent = 2;
constexpr size_t kBar = 40;
constexpr size_t kMostCollectives = 24;  // rows; the rest is summed up

using Kind = Column::Kind;

class TextReport {
 public:
  TextReport(const Report& report, bool colour) : report_(report), colour_(colour) {}

  std::string make() {
    verdict();
    planned();
    memory();
    buffers();
    over_step();
    collectives();
    estimate();
    changes();
    warnings();
    return std::move(out_);
  }

 private:
  std::string painted(std::string_view text, std::string_view code) const {
    return colour_ ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
  }
  void line(std::string_view text) { out_ += fmt::format("{:{}}{}\n", "", text.empty() ? 0 : kIndent, text); }
  void title(std::string_view text) { out_ += "\n" + painted(text, "1") + "\n"; }
  void table(const TextTable& table) {
    for (const std::string& text : table.lines(kWidth - kIndent)) line(text);
  }
  // Names in a column, values beside them, over several lines where they are long.
  void rows(const std::vector<std::pair<std::string, std::string>>& rows) {
    size_t names = 0;
    for (const auto& row : rows) names = std::max(names, width_of(row.first));
    for (const auto& [name, value] : rows) {
      std::string left = pad_right(name, names);
      for (const std::string& part : wrap(clean(value), kWidth - kIndent - names - 2)) {
        line(fmt::format("{}  {}", left, part));
        left.assign(names, ' ');
      }
    }
  }
  // "- text", what is longer goes on below.
  void point(std::string_view text) {
    std::string_view mark = "- ";
    for (const std::string& part : wrap(clean(text), kWidth - kIndent - mark.size())) {
      line(fmt::format("{}{}", mark, part));
      mark = "  ";
    }
  }

  void verdict();
  void planned() {
    title("Planned");
    rows(planned_rows(report_));
  }
  void memory();
  void buffers();
  void over_step();
  void collectives();
  void estimate();
  void changes();
  void warnings();

  const Report& report_;
  const bool colour_;
  std::string out_;
};

void TextReport::verdict() {
  const std::string word = verdict_word(report_);
  const std::string_view code = report_.memory.limit <= 0 ? "1" : report_.memory.fits() ? "1;32" : "1;31";
  const std::string text = fmt::format("{}: {}; estimate: {}, MFU {}, {} tokens/s/chip", word, verdict_memory(report_), step_text(report_),
                                       is_known(report_.mfu()) ? format_percent(report_.mfu()) : "unknown", rate_text(report_));
  const std::vector<std::string> lines = wrap(text, kWidth);
  out_ += painted(word, code) + lines[0].substr(word.size()) + "\n";
  for (size_t i = 1; i < lines.size(); ++i) line(lines[i]);
}

void TextReport::memory() {
  const Memory& memory = report_.memory;
  const double scale = memory_scale(memory), limit = static_cast<double>(memory.limit);
  const Unit unit = byte_unit(scale);
  TextTable kinds({{"kind", Kind::Name},
                   {std::string(unit.name), Kind::Number},
                   {limit > 0 ? "of limit" : "of total", Kind::Number},
                   {""}});
  const auto add = [&](std::string_view name, int64_t bytes, bool bar) {
    const double value = static_cast<double>(bytes), base = limit > 0 ? limit : scale;
    kinds.add(
        {std::string(name), in_unit(value, unit), format_percent(value / base), bar ? text_bar(value / scale, kBar) : ""});
  };
  for (const auto& [kind, bytes] : memory.by_kind) add(name_of(kind), bytes, true);
  add("total", memory.total, false);
  if (limit > 0) add("limit", memory.limit, false);
  title("HBM a device, when most is in use");
  table(kinds);
  if (memory.host > 0)
    line(fmt::format("in the host's memory, for one device: {}", format_bytes(static_cast<double>(memory.host))));
}

void TextReport::buffers() {
  const std::vector<Buffer>& buffers = report_.memory.largest;
  if (buffers.empty()) return;
  int64_t most = 0;
  double sum = 0;
  for (const Buffer& buffer : buffers) {
    most = std::max(most, buffer.bytes);
    sum += static_cast<double>(buffer.bytes);
  }
  // Columns that say nearly the same of every buffer would take room from the names.
  const bool padded = std::ranges::any_of(buffers, [](const Buffer& b) { return b.padding > b.bytes / 100; });
  const bool some_dead = !std::ranges::all_of(buffers, &Buffer::at_peak);
  const Unit unit = byte_unit(static_cast<double>(most));
  std::vector<Column> columns = {{std::string(unit.name), Kind::Number}};
  if (padded) columns.push_back({"padding", Kind::Number});
  if (some_dead) columns.push_back({"peak"});
  columns.insert(columns.end(), {{"kind"}, {"shape", Kind::Name}, {"name", Kind::Name}});
  TextTable table(std::move(columns));
  for (const Buffer& b : buffers) {
    const double bytes = static_cast<double>(b.bytes);
    std::vector<std::string> cells = {in_unit(bytes, unit)};
    if (padded) cells.push_back(format_percent(b.bytes > 0 ? static_cast<double>(b.padding) / bytes : 0));
    if (some_dead) cells.emplace_back(b.at_peak ? "yes" : "no");
    cells.insert(cells.end(), {std::string(name_of(b.kind)), b.shape, b.name});
    table.add(std::move(cells));
  }
  title(fmt::format("Largest buffers: {} together{}", format_bytes(sum), some_dead ? "" : ", all in use at the peak"));
  this->table(table);
}

void TextReport::over_step() {
  constexpr std::array<std::string_view, 8> kLevels = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::vector<double> samples = resampled(report_.memory.over_step, kWidth - kIndent);
  if (samples.empty()) return;
  const auto [least, most] = std::ranges::minmax(samples);
  std::string plot;
  for (double sample : samples) {
    const double height = most > least ? (sample - least) / (most - least) : 0;
    plot += kLevels[static_cast<size_t>(std::lround(height * (kLevels.size() - 1)))];
  }
  const Unit unit = byte_unit(most);
  title(fmt::format("HBM over the step: {} to {} {}, most at {} of the schedule", in_unit(least, unit), in_unit(most, unit),
                    unit.name, format_percent(peak_of(report_.memory).first)));
  line(plot);
}

void TextReport::collectives() {
  const std::vector<CollectiveGroup> groups = largest_first(report_.collectives);
  title(groups.empty() ? "Collectives of one device in a step: none" : "Collectives of one device in a step");
  if (groups.empty()) return;
  const CollectiveGroup sum = sum_of(groups);
  const Unit unit = byte_unit(std::isfinite(sum.bytes) ? sum.bytes : 0);
  TextTable table({{"kind"},
                   {"axes", Kind::Name},
                   {"type"},
                   {"where", Kind::Name},
                   {"times", Kind::Number},
                   {std::string(unit.name), Kind::Number},
                   {"overlapped", Kind::Number}});
  const auto add = [&](const CollectiveGroup& g, std::string kind, std::string axes) {
    table.add({std::move(kind), std::move(axes), g.type, g.place, format_count(g.count), in_unit(g.bytes, unit),
               format_percent(overlapped_part(g))});
  };
  const size_t shown = groups.size() > kMostCollectives ? kMostCollectives - 1 : groups.size();
  for (const CollectiveGroup& group : std::span(groups).first(shown)) add(group, group.kind, axes_text(group));
  if (shown < groups.size())
    add(sum_of(std::span(groups).subspan(shown)), fmt::format("{} others", groups.size() - shown), "");
  if (groups.size() > 1) add(sum, "total", "");
  this->table(table);
}

void TextReport::estimate() {
  const StepParts parts = step_parts(report_);
  const double step = report_.estimate.step_s, drawn = parts.compute + parts.memory + parts.exposed;
  const Unit unit = time_unit(std::max({drawn, parts.hbm_bound, parts.link_bound, parts.flops_bound, parts.host_bound}));
  TextTable table({{"estimate", Kind::Name}, {std::string(unit.name), Kind::Number}, {"of step", Kind::Number}, {""}});
  const auto add = [&](std::string_view name, double seconds, bool bar) {
    const bool relative = is_known(step) && std::isfinite(seconds);
    table.add({std::string(name), in_unit(seconds, unit), relative ? format_percent(seconds / step) : "",
               bar ? text_bar(seconds / drawn, kBar) : ""});
  };
  add("compute: matrix products", parts.compute, true);
  add("exposed memory traffic", parts.memory, true);
  add("exposed communication", parts.exposed, true);
  add("step", step, false);
  add("at least, by FLOPs / peak", parts.flops_bound, false);
  add("at least, by bytes / bandwidth", parts.hbm_bound, false);
  if (parts.host_bound > 0) add("at least, to the host and back", parts.host_bound, false);
  add("all communication, alone", parts.link_bound, false);
  title("Step time: an estimate, nothing here was measured");
  this->table(table);

  const Work& work = report_.work;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"one device", fmt::format("{}, {} of HBM traffic, {} of collectives", format_scaled(work.flops, "FLOP"),
                                 format_bytes(work.hbm_bytes), format_bytes(work.collective_bytes))}};
  if (is_known(report_.peak_flops)) facts[0].second += fmt::format("; peak {}", format_scaled(report_.peak_flops, "FLOP/s"));
  if (is_known(work.flops) && is_known(report_.model_flops_causal)) {
    facts.emplace_back("model FLOPs", fmt::format("{} causal, {} of those done", format_scaled(report_.model_flops_causal, "FLOP"),
                                                  format_percent(report_.model_flops_causal / work.flops)));
  }
  facts.emplace_back("MFU", mfu_text(report_));
  rows(facts);
  if (!report_.estimate.assumptions.empty()) title("Assumptions");
  for (const std::string& assumption : report_.estimate.assumptions) point(assumption);
  std::vector<std::pair<std::string, std::string>> costs;
  for (const Cost& cost : costs_of(report_))
    costs.emplace_back(cost.title, cost.basis.empty() ? cost.figure : fmt::format("{} ({})", cost.figure, cost.basis));
  if (!costs.empty()) title("Days and price: estimates");
  rows(costs);
}

void TextReport::changes() {
  if (report_.changes.empty()) return;
  const Unit unit = byte_unit(memory_scale(report_.memory));
  TextTable table({{"change", Kind::Name},
                   {fmt::format("HBM {}", unit.name), Kind::Number},
                   {"saves", Kind::Number},
                   {"step estimate", Kind::Number},
                   {"result"}});
  for (const Change& change : report_.changes) {
    // A key a line; figures beside the first.
    for (size_t k = 0; k < change.keys.size(); ++k) {
      const std::string what = fmt::format("{}{} = {}", k == 0 ? "" : "+ ", change.keys[k].first, change.keys[k].second);
      if (k > 0) table.add({what, "", "", "", ""});
      else if (!change.failure.empty()) table.add({what, "", "", "", "failed"});
      else
        table.add({what, in_unit(static_cast<double>(change.total), unit),
                   in_unit(static_cast<double>(report_.memory.total) - static_cast<double>(change.total), unit),
                   format_seconds(change.step_s), change.fits ? "fits" : "does not fit"});
    }
  }
  title(changes_title(report_));
  this->table(table);
  for (const Change& change : report_.changes) {
    if (!change.failure.empty()) point(fmt::format("failed, {}: {}", describe(change.keys), change.failure));
  }
}

void TextReport::warnings() {
  const std::vector<std::string> warnings = warnings_of(report_);
  if (!warnings.empty()) out_ += "\n";
  constexpr std::string_view kMark = "warning: ";
  for (const std::string& warning : warnings) {
    const std::vector<std::string> lines = wrap(clean(warning), kWidth - kMark.size());
    out_ += painted("warning:", "33") + " " + lines[0] + "\n";
    for (size_t i = 1; i < lines.size(); ++i) out_ += std::string(kMark.size(), ' ') + lines[i] + "\n";
  }
}

}  // namespace

std::string to_text(const Report& report, bool colour) { return TextReport(report, colour).make(); }

}  // namespace flambeau::plan
