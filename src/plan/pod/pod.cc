#include "plan/pod/pod.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace flambeau::plan {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kCube = 4;             // chips of a cube's edge
constexpr int64_t kLongest = 256;        // chips in one dimension, as Google's xpk has it
constexpr int64_t kRing = 16;            // of v5e and v6e: the edge of the whole pod
constexpr int64_t kMostSlices = 256;     // ours, and the next: libtpu lists so many devices in a few seconds
constexpr int64_t kMostDevices = 131072;
constexpr int64_t kAbsurd = 1'000'000;   // larger numbers of a name are taken for this one; its cube fits 64 bits

int64_t product(const Shape& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

// "8,960"
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

// ---- the shapes there are -----------------------------------------------------------------------------------------------

std::vector<Shape> listed_shapes(const Chip& chip) {
  if (chip.dimensions == 2) return {{1, 1}, {2, 2}, {2, 4}, {4, 4}, {4, 8}, {8, 8}, {8, 16}, {16, 16}};
  std::vector<Shape> shapes = {{2, 2, 1}, {2, 2, 2}, {2, 2, 4}, {2, 4, 4}};
  if (chip.generation == Generation::V7x) shapes.insert(shapes.begin(), {1, 1, 1});
  return shapes;
}

// Smallest first; of equal products, the most equal factors have the smallest sum.
std::tuple<int64_t, int64_t, Shape> order(const Shape& shape) {
  return {product(shape), std::accumulate(shape.begin(), shape.end(), int64_t{0}), shape};
}

std::vector<Shape> legal_shapes(const Chip& chip) {
  std::vector<Shape> shapes = listed_shapes(chip);
  if (chip.dimensions == 3) {
    for (int64_t a = kCube; a * a * a <= chip.largest_slice; a += kCube) {
      for (int64_t b = a; a * b * b <= chip.largest_slice; b += kCube) {
        for (int64_t c = b; c <= kLongest && a * b * c <= chip.largest_slice; c += kCube) shapes.push_back({a, b, c});
      }
    }
  }
  std::ranges::sort(shapes, {}, order);
  return shapes;
}

bool whole_cubes(const Shape& shape) {
  return shape.size() == 3 && std::ranges::all_of(shape, [](int64_t d) { return d % kCube == 0; });
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

const Chip* chip_named(std::string_view name) {
  constexpr std::pair<std::string_view, Generation> kNames[] = {
      {"v4", Generation::V4},        {"v5e", Generation::V5e}, {"v5litepod", Generation::V5e}, {"v5lite", Generation::V5e},
      {"v5p", Generation::V5p},      {"v5", Generation::V5p},  {"v6e", Generation::V6e},       {"trillium", Generation::V6e},
      {"tpu7x", Generation::V7x},    {"v7x", Generation::V7x}, {"7x", Generation::V7x},        {"tpu7", Generation::V7x},
      {"ironwood", Generation::V7x},
  };
  for (const auto& [known, generation] : kNames) {
    if (name == known) return &chip_of(generation);
  }
  return nullptr;
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
  Request request{.chip = chip_named(rest.substr(0, separator)), .text = quoted(text), .shape = {}, .count = {}};
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
  std::vector<Shape> shapes = legal_shapes(chip);
  std::ranges::sort(shapes, {}, [&](const Shape& legal) { return std::pair(far(legal), order(legal)); });
  shapes.resize(alike && far(shapes[0]) == 0 ? 1 : 3);
  std::string names;
  for (size_t i = 0; i < shapes.size(); ++i) {
    names += (i == 0 ? "" : i + 1 == shapes.size() ? " or " : ", ") + shape_name(chip, shapes[i]);
  }
  return names;
}

// "v5p-1920 (4x12x20) or v5p-2048 (8x8x16)": the sizes below and above.
std::string nearest_count(const Chip& chip, int64_t count) {
  const std::vector<Shape> shapes = legal_shapes(chip);
  const auto above = std::ranges::find_if(shapes, [&](const Shape& s) { return product(s) * chip.counted > count; });
  const auto name = [&](const Shape& shape) {
    return fmt::format("{}-{} ({})", chip.name, product(shape) * chip.counted, fmt::join(shape, "x"));
  };
  if (above == shapes.begin()) return name(*above);
  const auto below = std::ranges::find(shapes, product(*(above - 1)), product);
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
    for (Shape& shape : legal_shapes(chip)) {
      if (product(shape) == count / chip.counted) return std::move(shape);
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
  const std::vector<Shape> legal = legal_shapes(chip);
  if (std::ranges::find(legal, shape) != legal.end()) return;
  if (product(shape) > chip.largest_slice) {
    refuse(fmt::format("at most {} chips in a slice of {}", grouped(chip.largest_slice), chip.name));
  }
  std::string listed;
  for (const Shape& s : listed_shapes(chip)) listed += fmt::format("{}{}", listed.empty() ? "" : ", ", fmt::join(s, "x"));
  if (chip.dimensions == 3) listed += fmt::format(" or ascending multiples of {} up to {}", kCube, kLongest);
  refuse(fmt::format("{} for {}", listed, chip.name));
}

}  // namespace

int64_t Pod::chips_per_slice() const { return product(shape); }

std::string Pod::name() const { return shape_name(chip(), shape); }

std::string Pod::topology() const { return fmt::format("{}:{}", chip().libtpu_name, fmt::join(shape, "x")); }

std::string Pod::spoken() const {
  std::string text = slices == 1 ? name() : fmt::format("{} slices of {}", slices, name());
  text += fmt::format(" ({} chip{}", grouped(chips()), chips() == 1 ? "" : "s");
  if (devices() != chips()) text += fmt::format(", {} devices", grouped(devices()));
  return text + ")";
}

std::vector<int64_t> Pod::wrap() const {
  if (shape.size() == 3) return Shape(3, whole_cubes(shape) ? 1 : 0);
  return {shape[0] == kRing ? 1 : 0, shape[1] == kRing ? 1 : 0, 0};  // libtpu complains of a ring of one
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

// Google Cloud's machines: four chips; on v5e and v6e eight where the slice is one machine.
std::vector<int64_t> Pod::host() const {
  if (chips_per_slice() == 1) return {1, 1, 1};
  if (shape == Shape{2, 4}) return {2, 4, 1};
  return {2, 2, 1};
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

std::vector<Pod> legal_pods(Generation generation) {
  std::vector<Pod> pods;
  for (Shape& shape : legal_shapes(chip_of(generation))) {
    pods.push_back({.generation = generation, .shape = std::move(shape), .slices = 1});
  }
  return pods;
}

}  // namespace flambeau::plan
