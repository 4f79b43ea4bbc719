// Figures, names and tables as a plan's reports show them.
//
// What is not a finite number reads "unknown". Names come from programs and files of strangers: `clean` first, then measure,
// cut or escape; the other functions that take text expect it clean. Widths are columns of a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flambeau::plan {

// A unit that suits a figure; a column of figures takes the unit of its largest.
struct Unit {
  double scale = 1;  // of one unit: 2^30 for GiB
  std::string_view name;
  int decimals = 0;
};
Unit byte_unit(double largest);  // GiB, MiB, KiB, B
Unit time_unit(double largest);  // s, ms, us
// Without the unit's name: "1,234.50"; "<0.01" for what would round to 0.
std::string in_unit(double value, const Unit& unit);

std::string fixed(double value, int decimals);                   // "1,234.50"
std::string format_count(double value);                          // "1,234,567"
std::string format_bytes(double bytes);                          // "13.21 GiB", "512.0 MiB", "17 B"
std::string format_seconds(double seconds);                      // "1.842 s", "12.30 ms", "3h 10m"
std::string format_days(double days);                            // "1,234 days", "0.52 days"
std::string format_price(double price);                          // "1,234", "0.52": in the currency it was asked in
std::string format_percent(double fraction);                     // "41.2%"
std::string format_scaled(double value, std::string_view unit);  // "178.0 TFLOP": powers of 1,000
std::string count_of(int64_t n, std::string_view one, std::string_view many);  // "1 chip", "16 chips"

// Valid UTF-8 of one line that changes no state of a terminal or page: control characters, changes of writing direction and
// invalid bytes become U+FFFD, line breaks and tabs become blanks.
std::string clean(std::string_view text);
size_t width_of(std::string_view text);
// At most `width` wide; what is cut is the middle, where "..." stands.
std::string shorten(std::string_view text, size_t width);
// Lines at most `width` wide, broken at blanks where possible. At least one line.
std::vector<std::string> wrap(std::string_view text, size_t width);
// To `width` with blanks, behind the text or before it.
std::string pad_right(std::string text, size_t width);
std::string pad_left(std::string text, size_t width);

// A bar of at most `width` columns for a fraction of 0..1, in eighths of a column; anything above 0 shows.
std::string text_bar(double fraction, size_t width);

// A table in lines of equal columns. Cells are cleaned; where the table is too wide, columns that may shrink do so first.
struct Column {
  enum class Kind { Text, Number, Name };  // left; right; left, and shortened before others
  std::string title;
  Kind kind = Kind::Text;
};
class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);  // one for each column
  size_t rows() const { return rows_.size(); }
  // The titles, then the rows, each at most `width` wide.
  std::vector<std::string> lines(size_t width) const;

 private:
  std::vector<size_t> widths(size_t width) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace flambeau::plan
