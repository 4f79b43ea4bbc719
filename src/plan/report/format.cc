#include "plan/report/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "train/metrics.h"

namespace flambeau::plan {
namespace {

constexpr std::string_view kUnknown = "unknown";
constexpr char32_t kReplacement = 0xFFFD;

// Takes one code point from the front; kReplacement for a byte that begins none.
char32_t take_code_point(std::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  char32_t code = length == 1 ? first : first & (0xFF >> (length + 1));
  bool valid = first < 0x80 || (first >= 0xC2 && first <= 0xF4 && text.size() >= length);
  for (size_t i = 1; valid && i < length; ++i) {
    valid = (byte(i) & 0xC0) == 0x80;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (!valid || overlong || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
    text.remove_prefix(1);
    return kReplacement;
  }
  text.remove_prefix(length);
  return code;
}

bool is_within(char32_t code, char32_t first, char32_t last) { return first <= code && code <= last; }

// Control characters, marks that turn the direction of writing, and codes that are no characters (XML refuses them).
bool is_unsafe(char32_t code) {
  return code < 0x20 || is_within(code, 0x7F, 0x9F) || is_within(code, 0x200E, 0x200F) || is_within(code, 0x2028, 0x202E) ||
         is_within(code, 0x2066, 0x2069) || code == 0x061C || code == 0xFEFF || (code & 0xFFFE) == 0xFFFE;
}

// Columns that a terminal gives it: two for East Asian characters and pictures, none for marks on the one before.
size_t columns_of(char32_t code) {
  if (is_within(code, 0x0300, 0x036F) || is_within(code, 0x200B, 0x200D) || is_within(code, 0xFE00, 0xFE0F)) return 0;
  const bool wide = is_within(code, 0x1100, 0x115F) || is_within(code, 0x2E80, 0xA4CF) || is_within(code, 0xAC00, 0xD7A3) ||
                    is_within(code, 0xF900, 0xFAFF) || is_within(code, 0xFE30, 0xFE6F) || is_within(code, 0xFF00, 0xFF60) ||
                    is_within(code, 0x1F300, 0x1FAFF) || is_within(code, 0x20000, 0x3FFFD);
  return wide ? 2 : 1;
}

// How many bytes of the front are at most `width` wide.
size_t bytes_within(std::string_view text, size_t width) {
  std::string_view rest = text;
  size_t used = 0;
  while (!rest.empty()) {
    std::string_view next = rest;
    used += columns_of(take_code_point(next));
    if (used > width) break;
    rest = next;
  }
  return text.size() - rest.size();
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// The end of the text that is at most `width` wide.
std::string_view tail_within(std::string_view text, size_t width) {
  size_t start = text.size();
  for (size_t at = text.size(); at > 0;) {
    do {
      --at;
    } while (at > 0 && is_continuation(text[at]));
    if (width_of(text.substr(at)) > width) break;
    start = at;
  }
  return text.substr(start);
}

}  // namespace

Unit byte_unit(double largest) {
  if (largest >= 0x1p30) return {0x1p30, "GiB", 2};
  if (largest >= 0x1p20) return {0x1p20, "MiB", 1};
  if (largest >= 0x1p10) return {0x1p10, "KiB", 1};
  return {1, "B", 0};
}

Unit time_unit(double largest) {
  if (largest >= 1) return {1, "s", 3};
  if (largest >= 1e-3) return {1e-3, "ms", 2};
  return {1e-6, "us", 2};
}

std::string in_unit(double value, const Unit& unit) {
  const double shown = value / unit.scale, least = std::pow(10, -unit.decimals);
  return shown > 0 && shown < least / 2 ? "<" + fixed(least, unit.decimals) : fixed(shown, unit.decimals);
}

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return std::string(kUnknown);
  if (std::abs(value) >= 1e15) return fmt::format("{:.3e}", value);
  std::string text = fmt::format("{:.{}f}", std::abs(value), decimals);
  for (size_t at = std::min(text.find('.'), text.size()); at > 3;) text.insert(at -= 3, 1, ',');
  const bool negative = value < 0 && text.find_first_of("123456789") != std::string::npos;
  return negative ? "-" + text : text;
}

std::string format_count(double value) { return fixed(value, 0); }

std::string format_bytes(double bytes) {
  if (!std::isfinite(bytes)) return std::string(kUnknown);
  const Unit unit = byte_unit(std::abs(bytes));
  return fmt::format("{} {}", in_unit(bytes, unit), unit.name);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return std::string(kUnknown);
  if (seconds == 0) return "0 s";
  if (seconds >= 1e12) return fmt::format("{:.3e} s", seconds);
  if (seconds >= 120) return train::duration(seconds);
  const Unit unit = time_unit(seconds);
  return fmt::format("{} {}", in_unit(seconds, unit), unit.name);
}

std::string format_days(double days) {
  if (!std::isfinite(days)) return std::string(kUnknown);
  const int decimals = days < 10 ? 2 : days < 100 ? 1 : 0;
  return fixed(days, decimals) + " days";
}

std::string format_price(double price) { return fixed(price, price < 100 ? 2 : 0); }

std::string format_percent(double fraction) {
  return std::isfinite(fraction) ? fixed(100 * fraction, std::abs(fraction) < 10 ? 1 : 0) + "%" : std::string(kUnknown);
}

std::string format_scaled(double value, std::string_view unit) {
  if (!std::isfinite(value)) return std::string(kUnknown);
  constexpr std::array<std::string_view, 9> kPrefixes = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};
  size_t prefix = 0;
  // What would round to 1,000 takes the next prefix.
  for (; std::abs(value) >= 999.95 && prefix + 1 < kPrefixes.size(); ++prefix) value /= 1000;
  return fmt::format("{} {}{}", fixed(value, prefix == 0 ? 0 : 1), kPrefixes[prefix], unit);
}

std::string count_of(int64_t n, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", train::with_commas(n), n == 1 ? one : many);
}

std::string clean(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const char32_t code = take_code_point(text);
    if (code == '\n' || code == '\t' || code == '\r') out += ' ';
    else if (code == kReplacement || is_unsafe(code)) out += "\xEF\xBF\xBD";
    else out += before.substr(0, before.size() - text.size());
  }
  return out;
}

size_t width_of(std::string_view text) {
  size_t width = 0;
  while (!text.empty()) width += columns_of(take_code_point(text));
  return width;
}

std::string shorten(std::string_view text, size_t width) {
  constexpr std::string_view kGap = "...";
  if (width_of(text) <= width) return std::string(text);
  if (width <= kGap.size()) return std::string(text.substr(0, bytes_within(text, width)));
  const size_t kept = width - kGap.size(), front = (kept + 1) / 2;
  return fmt::format("{}{}{}", text.substr(0, bytes_within(text, front)), kGap, tail_within(text, kept - front));
}

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  do {
    size_t end = bytes_within(text, width);
    if (end < text.size()) {
      const size_t blank = text.rfind(' ', end);
      if (blank != std::string_view::npos && blank > 0) end = blank;
      else end = std::max<size_t>(end, 1);
    }
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  } while (!text.empty());
  return lines;
}

std::string pad_right(std::string text, size_t width) {
  const size_t used = width_of(text);
  return used < width ? text.append(width - used, ' ') : text;
}

std::string pad_left(std::string text, size_t width) {
  const size_t used = width_of(text);
  return used < width ? text.insert(0, width - used, ' ') : text;
}

std::string text_bar(double fraction, size_t width) {
  constexpr std::array<std::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (!(fraction > 0)) return "";
  const auto eighths =
      std::max<size_t>(1, static_cast<size_t>(std::lround(std::min(fraction, 1.0) * static_cast<double>(8 * width))));
  std::string bar;
  for (size_t i = 0; i < eighths / 8; ++i) bar += "█";
  return bar.append(kEighths[eighths % 8]);
}

void TextTable::add(std::vector<std::string> cells) {
  FLAMBEAU_CHECK(cells.size() == columns_.size(), "a row has a cell for each column");
  for (std::string& cell : cells) cell = clean(cell);
  rows_.push_back(std::move(cells));
}

std::vector<size_t> TextTable::widths(size_t width) const {
  std::vector<size_t> widths;
  size_t sum = 2 * (columns_.size() - 1);
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t widest = width_of(columns_[c].title);
    for (const auto& row : rows_) widest = std::max(widest, width_of(row[c]));
    widths.push_back(widest);
    sum += widest;
  }
  constexpr size_t kNarrowName = 16, kNarrow = 3;
  for (; sum > width; --sum) {
    size_t* most = nullptr;
    for (size_t c = 0; c < widths.size(); ++c) {
      if (columns_[c].kind == Column::Kind::Name && widths[c] > kNarrowName && (!most || widths[c] > *most))
        most = &widths[c];
    }
    if (!most) most = &*std::ranges::max_element(widths);
    if (*most <= kNarrow) break;
    --*most;
  }
  return widths;
}

std::string TextTable::line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const {
  std::string line;
  for (size_t c = 0; c < cells.size(); ++c) {
    std::string cell = shorten(cells[c], widths[c]);
    if (c > 0) line += "  ";
    line += columns_[c].kind == Column::Kind::Number ? pad_left(std::move(cell), widths[c])
                                                     : pad_right(std::move(cell), widths[c]);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::vector<std::string> TextTable::lines(size_t width) const {
  const std::vector<size_t> columns = widths(width);
  std::vector<std::string> titles, lines;
  for (const Column& column : columns_) titles.push_back(column.title);
  lines.push_back(line(titles, columns));
  for (const auto& row : rows_) lines.push_back(line(row, columns));
  return lines;
}

}  // namespace flambeau::plan
