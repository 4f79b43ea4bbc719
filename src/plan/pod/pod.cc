#include "plan/pod/pod.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace flambeau::plan {
namespace {

using Shape = targets::SliceShape;

constexpr int64_t kMostSlices = 256;     // ours, and the next: libtpu lists so many devices in a few seconds
constexpr int64_t kMostDevices = 131072;
constexpr int64_t kAbsurd = 1'000'000;   // larger numbers of a name are taken for this one; its cube fits 64 bits

// "8,960"
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

// ---- reading a name -----------------------------------------------------------------------------------------------------

struct Request {
  const Chip* chip = nullptr;
  std::string text;  // as the user wrote it, fit for a message
  Shape shape;       // one of the two
  std::optional<int64_t> count;
};

// One line of printable ASCII, and not a long one.
std::string quoted(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string shown(text.substr(0, kMost));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kMost ? "'" + shown + "...'" : "'" + shown + "'";
}

// A number with an optional sign; none where it is none. Beyond kAbsurd: that.
std::optional<int64_t> number_of(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = std::min(10 * value + (c - '0'), kAbsurd);
  }
  return negative ? -value : value;
}

// "8x8x16"; empty where it is none.
Shape shape_of(std::string_view text) {
  Shape shape;
  for (;;) {
    const size_t end = text.find('x');
    const auto number = number_of(text.substr(0, end));
    if (!number) return {};
    shape.push_back(*number);
    if (end == std::string_view::npos) return shape;
    text.remove_prefix(end + 1);
  }
}

Request read(std::string_view text) {
  std::string lower;
  for (const char c : text) {
    if (c != ' ') lower.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  std::string_view rest = lower;
  if (rest.starts_with("tpu-")) rest.remove_prefix(4);
  const size_t colon = rest.find(':'), separator = colon != std::string_view::npos ? colon : rest.rfind('-');
  Request request{.chip = targets::chip_named(rest.substr(0, separator)), .text = quoted(text), .shape = {}, .count = {}};
  if (request.chip == nullptr) {
    raise<InvalidArgument>("[plan.pod] expected a pod of v4, v5e, v5p, v6e or tpu7x, such as v5p:8x8x16 or v6e-256, got {}",
                           request.text);
  }
  const std::string_view size = separator == std::string_view::npos ? std::string_view() : rest.substr(separator + 1);
  request.shape = shape_of(size);
  if (separator != colon && request.shape.size() == 1) request.count = std::exchange(request.shape, {})[0];
  if (request.shape.empty() && !request.count) {
    const std::string shape = request.chip->dimensions == 2 ? "4x8" : "4x4x8";
    raise<InvalidArgument>("[plan.pod] expected a shape or a size after the generation, such as {0}:{1} or {0}-128, got {2}",
                           request.chip->name, shape, request.text);
  }
  return request;
}

// ---- refusals -----------------------------------------------------------------------------------------------------------

std::string shape_name(const Chip& chip, const Shape& shape) {
  return fmt::format("{}:{}", chip.name, fmt::join(shape, "x"));
}

double log2_of(int64_t number) { return std::log2(static_cast<double>(std::max(number, int64_t{1}))); }

double log2_chips(const Shape& shape) {
  double sum = 0;
  for (const int64_t d : shape) sum += log2_of(d);
  return sum;
}

// How unlike two shapes are: how often one must double or halve dimensions to get the other, in any order.
double distance(Shape legal, Shape wanted) {
  std::ranges::sort(legal);
  std::ranges::sort(wanted);
  double sum = 0;
  for (size_t i = 0; i < legal.size(); ++i) sum += std::abs(log2_of(legal[i]) - log2_of(wanted[i]));
  return sum;
}

// "v5p:4x4x4, v5p:4x4x8 or v5p:4x8x8": three alike, or three of about as many chips where shapes cannot be compared or all
// are too small; one alone where only the order of its dimensions was wrong.
std::string nearest(const Chip& chip, const Shape& wanted) {
  const double chips = log2_chips(wanted);
  const bool alike = static_cast<int64_t>(wanted.size()) == chip.dimensions && chips <= log2_of(chip.largest_slice);
  const auto far = [&](const Shape& legal) {
    return alike ? distance(legal, wanted) : std::abs(log2_chips(legal) - chips);
  };
  std::vector<Shape> shapes = targets::slices(chip);
  std::ranges::sort(shapes, {}, [&](const Shape& legal) { return std::pair(far(legal), targets::slice_order(legal)); });
  shapes.resize(alike && far(shapes[0]) == 0 ? 1 : 3);
  std::string names;
  for (size_t i = 0; i < shapes.size(); ++i) {
    names += (i == 0 ? "" : i + 1 == shapes.size() ? " or " : ", ") + shape_name(chip, shapes[i]);
  }
  return names;
}

// "v5p-1920 (4x12x20) or v5p-2048 (8x8x16)": the sizes below and above.
std::string nearest_count(const Chip& chip, int64_t count) {
  const std::vector<Shape> shapes = targets::slices(chip);
  const auto above = std::ranges::find_if(shapes, [&](const Shape& s) { return targets::chips_of(s) * chip.counted > count; });
  const auto name = [&](const Shape& shape) {
    return fmt::format("{}-{} ({})", chip.name, targets::chips_of(shape) * chip.counted, fmt::join(shape, "x"));
  };
  if (above == shapes.begin()) return name(*above);
  const auto below = std::ranges::find(shapes, targets::chips_of(*(above - 1)), targets::chips_of);
  return above == shapes.end() ? name(*below) : name(*below) + " or " + name(*above);
}

void check_slices(const Pod& pod) {
  const Chip& chip = pod.chip();
  if (pod.slices < 1 || pod.slices > kMostSlices) {
    raise<InvalidArgument>("[plan.pod] expected 1 to {} slices, got {}", kMostSlices, pod.slices);
  }
  const int64_t most = chip.most_chips != 0 ? chip.most_chips : kMostDevices / chip.devices;
  if (pod.chips() > most) {
    raise<InvalidArgument>("[plan.pod] expected at most {} chips of {} in all slices, got {} slices of {}, {} chips; ask "
                           "for at most {}",
                           grouped(most), chip.name, pod.slices, pod.name(), grouped(pod.chips()),
                           most / pod.chips_per_slice());
  }
}

// The standard shape for a count.
Shape counted_shape(const Request& request) {
  const Chip& chip = *request.chip;
  const int64_t count = *request.count;
  if (count % chip.counted == 0) {
    for (Shape& shape : targets::slices(chip)) {
      if (targets::chips_of(shape) == count / chip.counted) return std::move(shape);
    }
  }
  const std::string what = chip.counted == 1 ? "chips" : fmt::format("TensorCores, {} a chip", chip.counted);
  raise<InvalidArgument>("[plan.pod] expected a size that a slice of {} has (the number counts {}), got {}; nearest: {}",
                         chip.name, what, request.text, nearest_count(chip, count));
}

void check_shape(const Request& request) {
  const Chip& chip = *request.chip;
  const Shape& shape = request.shape;
  const auto refuse = [&](const std::string& expected) {
    raise<InvalidArgument>("[plan.pod] expected {}, got {}; nearest: {}", expected, request.text, nearest(chip, shape));
  };
  if (static_cast<int64_t>(shape.size()) != chip.dimensions) {
    refuse(fmt::format("{} dimensions for {}", chip.dimensions, chip.name));
  }
  if (std::ranges::min(shape) < 1) refuse("dimensions of at least 1");
  const std::vector<Shape> legal = targets::slices(chip);
  if (std::ranges::find(legal, shape) != legal.end()) return;
  if (targets::chips_of(shape) > chip.largest_slice) {
    refuse(fmt::format("at most {} chips in a slice of {}", grouped(chip.largest_slice), chip.name));
  }
  std::string listed;
  for (const Shape& s : targets::listed_slices(chip)) listed += fmt::format("{}{}", listed.empty() ? "" : ", ", fmt::join(s, "x"));
  if (chip.dimensions == 3) listed += fmt::format(" or ascending multiples of {} up to {}", targets::kCubeEdge, targets::kLongestDimension);
  refuse(fmt::format("{} for {}", listed, chip.name));
}

}  // namespace

int64_t Pod::chips_per_slice() const { return targets::chips_of(shape); }

std::string Pod::name() const { return shape_name(chip(), shape); }

std::string Pod::topology() const { return fmt::format("{}:{}", chip().libtpu_name, fmt::join(shape, "x")); }

std::string Pod::spoken() const {
  std::string text = slices == 1 ? name() : fmt::format("{} slices of {}", slices, name());
  text += fmt::format(" ({} chip{}", grouped(chips()), chips() == 1 ? "" : "s");
  if (devices() != chips()) text += fmt::format(", {} devices", grouped(devices()));
  return text + ")";
}

std::vector<int64_t> Pod::coordinates(int64_t device) const {
  int64_t rest = device / chip().devices % chips_per_slice();
  std::vector<int64_t> coordinates;
  for (const int64_t length : shape) {
    coordinates.push_back(rest % length);
    rest /= length;
  }
  return coordinates;
}

double Pod::ici_bandwidth(std::span<const int64_t> devices) const {
  std::vector<std::set<int64_t>> seen(shape.size());
  for (const int64_t device : devices) {
    const std::vector<int64_t> at = coordinates(device);
    for (size_t d = 0; d < at.size(); ++d) seen[d].insert(at[d]);
  }
  double links = 0;
  for (size_t d = 0; d < seen.size(); ++d) {
    const auto count = static_cast<int64_t>(seen[d].size());
    if (count < 2) continue;
    const int64_t gap = (*seen[d].rbegin() - *seen[d].begin()) / (count - 1);
    const bool ring = wrap()[d] != 0 && count * gap == shape[d];
    links += (ring ? 2.0 : 1.0) / static_cast<double>(gap);
  }
  if (links == 0) return chip().device_peak().ici_bandwidth;  // the devices of one chip, which no link limits
  return links * chip().link_bandwidth() / static_cast<double>(chip().devices);
}

pjrt::Attributes Pod::attributes() const {
  pjrt::Attributes attributes = {{"wrap", wrap()}, {"chips_per_host_bounds", host()}};
  if (slices > 1) attributes.emplace("num_slices", slices);
  // Else libtpu makes two devices of a v4 chip, which no TPU runtime does.
  if (generation == Generation::V4) attributes.emplace("chip_config_name", std::string("megacore"));
  return attributes;
}

Pod parse_pod(std::string_view text, int64_t slices) {
  Request request = read(text);
  if (request.count) {
    request.shape = counted_shape(request);
  } else {
    check_shape(request);
  }
  Pod pod{.generation = request.chip->generation, .shape = std::move(request.shape), .slices = slices};
  check_slices(pod);
  return pod;
}

}  // namespace flambeau::plan
