#include "plan/analytic/memory_use.h"

#include <algorithm>
#include <bit>

namespace flambeau::plan {
namespace {

constexpr size_t kMostNamed = 10, kMostPoints = 400;

}  // namespace

std::string type_name(DType dtype) {
  const std::string name(hlo_name(dtype));
  if (dtype == DType::Pred) return "pred";
  if (name.starts_with("ui")) return "u" + name.substr(2);
  return name.starts_with("i") ? "s" + name.substr(1) : name;
}

std::string shape_text(DType dtype, const hlo::Dims& dims) {
  std::string text = type_name(dtype) + "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

double tiled_bytes(DType dtype, const hlo::Dims& dims) {
  constexpr double kLeast = 512;
  const auto up = [](int64_t n, int64_t to) { return double((n + to - 1) / to * to); };
  const auto rows = [&](int64_t n) { return up(n, n > 4 ? 8 : n > 2 ? 4 : n); };
  if (dims.size() == 1) {
    const auto tile = int64_t(std::bit_ceil(uint64_t(std::clamp<int64_t>(dims[0], 128, 1024))));
    return std::max(kLeast, up(dims[0], tile) * double(byte_size(dtype)));
  }
  double elements = 1;
  for (const int64_t d : dims) elements *= double(d);
  double least = dims.empty() ? 1 : -1;
  for (size_t lane = 0; lane < dims.size(); ++lane) {
    for (size_t row = 0; row < dims.size(); ++row) {
      if (dims[lane] == 0 || dims[row] == 0) return 0;
      if (row == lane) continue;
      const double padded = elements / double(dims[lane]) / double(dims[row]) * rows(dims[row]) * up(dims[lane], 128);
      least = least < 0 ? padded : std::min(least, padded);
    }
  }
  return std::max(kLeast, least * double(byte_size(dtype)));
}

void MemoryUse::hold(Held held) {
  if (held.bytes <= 0) return;
  release(held.id);
  in_use_ += held.bytes;
  most_in_step_ = std::max(most_in_step_, in_use_);
  const uint32_t id = held.id;
  held_.emplace(id, std::move(held));
  if (in_use_ <= peak_) return;
  peak_ = in_use_;
  is_at_peak_ = true;
}

void MemoryUse::release(uint32_t id) {
  const auto found = held_.find(id);
  if (found == held_.end()) return;
  remember_peak();
  in_use_ -= found->second.bytes;
  held_.erase(found);
}

void MemoryUse::hand_over(uint32_t id, uint32_t to) {
  auto node = held_.extract(id);
  if (node.empty()) return;
  node.key() = node.mapped().id = to;
  held_.insert(std::move(node));
}

// A peak lasts until something is released: most are exceeded before, and need no copy.
void MemoryUse::remember_peak() {
  if (!is_at_peak_) return;
  is_at_peak_ = false;
  at_peak_.clear();
  for (const auto& [id, held] : held_) at_peak_.push_back(held);
}

void MemoryUse::end_step() {
  steps_.push_back(int64_t(most_in_step_));
  most_in_step_ = in_use_;
}

Memory MemoryUse::take() {
  remember_peak();
  Memory memory;
  std::map<MemoryKind, double> kinds;
  for (Held& h : at_peak_) {
    kinds[h.kind] += h.bytes;
    memory.largest.push_back({std::move(h.name), h.kind, std::move(h.shape), int64_t(h.bytes), 0, true});
  }
  for (const auto& [kind, bytes] : kinds) {
    memory.by_kind.emplace_back(kind, int64_t(bytes));
    memory.total += int64_t(bytes);
  }
  std::ranges::stable_sort(memory.largest, [](const Buffer& a, const Buffer& b) { return a.bytes > b.bytes; });
  if (memory.largest.size() > kMostNamed) memory.largest.resize(kMostNamed);
  const size_t points = std::min(steps_.size(), kMostPoints);
  for (size_t i = 0; i < points; ++i) {  // the most of each part
    const auto at = [&](size_t part) { return steps_.begin() + std::ptrdiff_t(part * steps_.size() / points); };
    memory.over_step.emplace_back(double(i) / double(std::max<size_t>(1, points - 1)), *std::max_element(at(i), at(i + 1)));
  }
  return memory;
}

}  // namespace flambeau::plan
