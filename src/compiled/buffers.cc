#include "compiled/buffers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "compiled/fields.h"

namespace flambeau::compiled {
namespace {

// Takes the text up to its first `until` away from `text`, with it; all of it where there is none.
std::string_view take_until(std::string_view& text, std::string_view until) {
  const size_t at = text.find(until);
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + until.size());
  return taken;
}

std::optional<int64_t> integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

int64_t integer_of(std::string_view text, std::string_view line) {
  const auto value = integer(text);
  if (!value)
    raise<InvalidArgument>("[compiled.buffers] expected a number of at least 0, got '{}' in: {}", text, line.substr(0, 200));
  return *value;
}

// "a{}" is all of a.
std::string canonical(std::string_view name) {
  if (name.ends_with("{}")) name.remove_suffix(2);
  return std::string(name);
}

// allocation 8: size 589824, color 1, page 0, parameter 28, shape |f32[6,32,768]| at ShapeIndex {}, maybe-live-out:
Allocation parse_allocation(std::string_view line) {
  Allocation allocation;
  std::string_view rest = line;
  take_until(rest, ": ");
  while (!rest.empty()) {
    std::string_view part = take_until(rest, ", ");
    if (part.ends_with(':')) part.remove_suffix(1);
    if (part.starts_with("size ")) {
      allocation.size = integer_of(part.substr(5), line);
    } else if (part.starts_with("color ")) {
      allocation.color = integer_of(part.substr(6), line);
    } else if (part.starts_with("parameter ")) {
      allocation.use = Allocation::Use::Parameter;
      allocation.parameter = integer_of(part.substr(10), line);
      break;  // a shape may have commas
    } else if (part == "constant") {
      allocation.use = Allocation::Use::Constant;
    } else if (part == "thread-local") {
      allocation.use = Allocation::Use::ThreadLocal;
    } else if (part == "preallocated-temp") {
      allocation.use = Allocation::Use::Temporary;
    } else if (part.starts_with("output shape")) {
      break;
    }
  }
  return allocation;
}

//  value: <2724 wide.param.38{1} (phi) @1> (size=262144,offset=25165824): f32[2048,32]{0,1:T(8,128)S(1)}
BufferValue parse_value(std::string_view line) {
  BufferValue value;
  std::string_view rest = line;
  take_until(rest, "<");
  take_until(rest, " ");
  value.name = canonical(take_until(rest, " "));
  take_until(rest, "(size=");
  value.size = integer_of(take_until(rest, ",offset="), line);
  value.offset = integer_of(take_until(rest, "): "), line);
  value.shape = rest;
  return value;
}

using Ranges = std::unordered_map<std::string, std::pair<int64_t, int64_t>>;

// The lines "    fusion.300{0}:171-174" below "  BufferLiveRange:".
Ranges parse_ranges(std::string_view text, int64_t& length) {
  Ranges ranges;
  bool here = false;
  while (!text.empty()) {
    const std::string_view line = take_until(text, "\n");
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    if (indent < 4) {
      here = line.substr(indent) == "BufferLiveRange:";
      continue;
    }
    if (!here) continue;
    const size_t colon = line.rfind(':');
    if (colon == std::string_view::npos || colon < indent) continue;
    std::string_view range = line.substr(colon + 1);
    const int64_t first = integer_of(take_until(range, "-"), line), last = integer_of(range, line);
    if (last < first || last == std::numeric_limits<int64_t>::max())
      raise<InvalidArgument>("[compiled.buffers] expected a range, got: {}", line.substr(0, 200));
    ranges.emplace(canonical(line.substr(indent, colon - indent)), std::pair(first, last));
    length = std::max(length, last + 1);
  }
  return ranges;
}

int64_t sum(const std::vector<Allocation>& allocations, bool (*counts)(const Allocation&)) {
  int64_t total = 0;
  for (const Allocation& a : allocations) {
    if (counts(a) && __builtin_add_overflow(total, a.size, &total))
      raise<InvalidArgument>("[compiled.buffers] expected sizes that fit 63 bits together");
  }
  return total;
}

}  // namespace

Buffers parse_buffers(std::string_view buffer_assignment, std::string_view live_ranges) {
  Buffers buffers;
  const Ranges ranges = parse_ranges(live_ranges, buffers.schedule_length);
  while (!buffer_assignment.empty()) {
    const std::string_view line = take_until(buffer_assignment, "\n");
    if (line.starts_with("allocation ")) buffers.allocations.push_back(parse_allocation(line));
    if (line.starts_with("Total bytes used") || line.starts_with("Used values")) break;
    if (!line.starts_with(" value: ")) continue;
    if (buffers.allocations.empty()) raise<InvalidArgument>("[compiled.buffers] expected values below their allocations");
    BufferValue value = parse_value(line);
    Allocation& allocation = buffers.allocations.back();
    if (value.size > allocation.size || value.offset > allocation.size - value.size)
      raise<InvalidArgument>("[compiled.buffers] expected values within {} bytes, got: {}", allocation.size, line.substr(0, 200));
    if (const auto range = ranges.find(value.name); range != ranges.end())
      std::tie(value.first, value.last) = range->second;
    allocation.values.push_back(std::move(value));
  }
  buffers.hbm_bytes();  // that the sums fit is a guarantee
  buffers.host_bytes();
  return buffers;
}

int64_t Buffers::hbm_bytes() const {
  return sum(allocations, [](const Allocation& a) { return a.in_hbm(); });
}

int64_t Buffers::host_bytes() const {
  return sum(allocations, [](const Allocation& a) { return a.on_host(); });
}

int64_t bytes_of_shape(std::string_view text) {
  const size_t open = text.find('['), close = text.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open || text.starts_with('(')) return 0;
  Shape shape{.type = text.substr(0, open), .dims = {}, .parts = {}};
  int64_t elements = 1;
  for (std::string_view dims = text.substr(open + 1, close - open - 1); !dims.empty();) {
    const auto dim = integer(take_until(dims, ","));
    if (!dim || *dim > (int64_t{1} << 58) / std::max<int64_t>(elements, 1)) return 0;
    elements *= *dim;
    shape.dims.push_back(*dim);
  }
  return shape.bytes();
}

}  // namespace flambeau::compiled
