#include "plan/memory/memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "plan/memory/buffer_kinds.h"

namespace flambeau::plan {
namespace {

using compiled::Allocation;
using compiled::Buffers;
using compiled::BufferValue;

constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();
constexpr size_t kLargest = 10;
constexpr int kMostParts = 400;

// A range of memory that holds one thing for a while: from `first` to `last`, both included.
struct Piece {
  Buffer buffer;
  int64_t offset = 0;  // all allocations lie one after another
  int64_t first = 0, last = kAlways;
  bool named = true;  // by the model, not by the compiler

  int64_t end() const { return offset + buffer.bytes; }
  bool lives_at(int64_t time) const { return first <= time && time <= last; }
};

// Of the values that share memory, the one that says most about it goes first.
int rank(MemoryKind kind) {
  constexpr MemoryKind kOrder[] = {MemoryKind::SavedActivations, MemoryKind::Gradients,  MemoryKind::OptimizerStates,
                                   MemoryKind::Collectives,      MemoryKind::Parameters, MemoryKind::Batch,
                                   MemoryKind::Temporaries,      MemoryKind::Padding};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), kind) - std::begin(kOrder));
}

bool says_more(const Piece& a, const Piece& b) {
  return std::pair(rank(a.buffer.kind), !a.named) < std::pair(rank(b.buffer.kind), !b.named);
}

// "f32[6,32]" of "f32[6,32]{1,0:T(8,128)}"
std::string without_layout(const std::string& shape) { return shape.substr(0, shape.find(']') + 1); }

Buffer describe(const BufferValue& value, int64_t bytes) {
  Buffer buffer;
  buffer.shape = value.shape.starts_with('(') ? "tuple" : without_layout(value.shape);
  buffer.bytes = bytes;
  const int64_t filled = compiled::bytes_of_shape(value.shape);
  // Tables of tuples have no elements; what is smaller than a granule is not worth the name of padding.
  buffer.padding = filled > 0 ? std::max<int64_t>(bytes - filled, 0) : 0;
  return buffer;
}

class Layout {
 public:
  explicit Layout(const CompiledStep& step) : step_(step), kinds_(step) {
    int64_t base = 0;
    for (const Allocation& allocation : step.buffers.allocations) {
      if (!allocation.in_hbm()) continue;
      if (allocation.use == Allocation::Use::Temporary) add_shared(allocation, base);
      else add_whole(allocation, base);
      base += allocation.size;
    }
  }

  std::vector<Piece>& pieces() { return pieces_; }

 private:
  void add_whole(const Allocation& allocation, int64_t base) {
    if (allocation.size == 0) return;
    Piece piece{.buffer = {}, .offset = base};
    if (!allocation.values.empty()) piece.buffer = describe(allocation.values[0], allocation.size);
    piece.buffer.bytes = allocation.size;
    const auto number = static_cast<size_t>(allocation.parameter);
    if (allocation.parameter >= 0 && number < step_.arguments.size()) {
      piece.buffer.kind = step_.arguments[number].kind;
      piece.buffer.name = step_.arguments[number].name;
    } else {
      piece.buffer.name = allocation.use == Allocation::Use::Constant ? "constants" : "results";
    }
    pieces_.push_back(std::move(piece));
  }

  // Values of the same range whose times meet are one piece.
  void add_shared(const Allocation& allocation, int64_t base) {
    std::map<std::pair<int64_t, int64_t>, std::vector<const BufferValue*>> ranges;
    for (const BufferValue& value : allocation.values) {
      if (value.size > 0) ranges[{value.offset, value.size}].push_back(&value);
    }
    for (auto& [range, values] : ranges) {
      std::sort(values.begin(), values.end(), [](const BufferValue* a, const BufferValue* b) {
        return std::tie(a->first, a->last, a->name) < std::tie(b->first, b->last, b->name);
      });
      const size_t start = pieces_.size();
      for (const BufferValue* value : values) {
        Piece piece = piece_of(*value, base);
        Piece* open = pieces_.size() > start ? &pieces_.back() : nullptr;
        if (open == nullptr || piece.first > open->last) {
          pieces_.push_back(std::move(piece));
          continue;
        }
        const int64_t first = open->first, last = std::max(open->last, piece.last);
        if (says_more(piece, *open)) *open = std::move(piece);
        open->first = first;
        open->last = last;
      }
    }
  }

  Piece piece_of(const BufferValue& value, int64_t base) const {
    Piece piece{.buffer = describe(value, value.size), .offset = base + value.offset};
    if (value.first >= 0) std::tie(piece.first, piece.last) = std::pair(value.first, value.last);
    piece.buffer.kind = kinds_.kind(value.name);
    piece.buffer.name = kinds_.name(value.name);
    piece.named = piece.buffer.name != value.name;
    return piece;
  }

  const CompiledStep& step_;
  BufferKinds kinds_;
  std::vector<Piece> pieces_;
};

// How many bytes at least one of several ranges covers, while ranges come and go.
class Coverage {
 public:
  explicit Coverage(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) bounds_.insert(bounds_.end(), {piece.offset, piece.end()});
    std::sort(bounds_.begin(), bounds_.end());
    bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
    nodes_.resize(4 * bounds_.size() + 4);
  }

  void add(const Piece& piece, int count) {
    if (piece.buffer.bytes > 0) add(1, 0, bounds_.size() - 1, index(piece.offset), index(piece.end()), count);
  }
  int64_t covered() const { return nodes_[1].covered; }

 private:
  struct Node {
    int count = 0;  // of ranges that cover all of it
    int64_t covered = 0;
  };

  size_t index(int64_t bound) const {
    return static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), bound) - bounds_.begin());
  }

  // A segment tree over the gaps between bounds; the node is of the gaps low..high-1.
  void add(size_t node, size_t low, size_t high, size_t from, size_t to, int count) {
    if (to <= low || high <= from) return;
    Node& n = nodes_[node];
    if (from <= low && high <= to) {
      n.count += count;
    } else {
      const size_t middle = (low + high) / 2;
      add(2 * node, low, middle, from, to, count);
      add(2 * node + 1, middle, high, from, to, count);
    }
    if (n.count > 0) n.covered = bounds_[high] - bounds_[low];
    else n.covered = high - low > 1 ? nodes_[2 * node].covered + nodes_[2 * node + 1].covered : 0;
  }

  std::vector<int64_t> bounds_;
  std::vector<Node> nodes_;
};

struct Course {
  std::vector<std::pair<int64_t, int64_t>> points;  // time, bytes in use from then on
  int64_t peak_time = 0, peak = 0;
};

Course run(const std::vector<Piece>& pieces) {
  std::map<int64_t, std::vector<std::pair<const Piece*, int>>> events;
  for (const Piece& piece : pieces) {
    events[piece.first].emplace_back(&piece, 1);
    if (piece.last != kAlways) events[piece.last + 1].emplace_back(&piece, -1);
  }
  Coverage coverage(pieces);
  Course course;
  for (const auto& [time, changes] : events) {
    for (const auto& [piece, count] : changes) coverage.add(*piece, count);
    course.points.emplace_back(time, coverage.covered());
    if (coverage.covered() > course.peak) std::tie(course.peak, course.peak_time) = std::pair(coverage.covered(), time);
  }
  return course;
}

// The largest use in each of kMostParts parts of the schedule in which it changes; where that does not last, what is left after the part.
std::vector<std::pair<double, int64_t>> thin_out(const Course& course, int64_t length) {
  std::vector<std::pair<double, int64_t>> points;
  int64_t open = -1, in_use = 0;  // the part that the last point is of, and what is in use at last
  const auto at = [](int64_t part) { return static_cast<double>(part) / kMostParts; };
  for (const auto& [time, bytes] : course.points) {
    const double where = static_cast<double>(time) / static_cast<double>(length) * kMostParts;
    const int64_t part = std::min<int64_t>(static_cast<int64_t>(where), kMostParts - 1);
    if (part > open) {
      if (!points.empty() && open + 1 < part && points.back().second > in_use) points.emplace_back(at(open + 1), in_use);
      points.emplace_back(at(part), where > static_cast<double>(part) ? in_use : 0);  // in use when the part begins
      open = part;
    }
    points.back().second = std::max(points.back().second, bytes);
    in_use = bytes;
  }
  if (!points.empty() && points.back().second > in_use) points.emplace_back(at(open + 1), in_use);
  return points;
}

// Each byte in use at the peak to one piece; of those that overlap, to the one that says most.
void share_out(std::vector<Piece>& pieces, const Course& course, int64_t total, Memory& memory) {
  std::vector<Piece*> alive;
  for (Piece& piece : pieces) {
    if (piece.lives_at(course.peak_time)) alive.push_back(&piece);
  }
  std::sort(alive.begin(), alive.end(), [](const Piece* a, const Piece* b) {
    return std::pair(rank(a->buffer.kind), a->offset) < std::pair(rank(b->buffer.kind), b->offset);
  });
  std::array<int64_t, 8> kinds{};
  auto& padding = kinds[static_cast<size_t>(MemoryKind::Padding)];
  Coverage coverage(pieces);
  for (Piece* piece : alive) {
    const int64_t before = coverage.covered();
    coverage.add(*piece, 1);
    const int64_t own = coverage.covered() - before;
    const int64_t unfilled = std::min(own, piece->buffer.padding);
    kinds[static_cast<size_t>(piece->buffer.kind)] += own - unfilled;
    padding += unfilled;
    piece->buffer.at_peak = own > 0;
  }
  padding += total - coverage.covered();  // between buffers
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    if (kinds[kind] != 0) memory.by_kind.emplace_back(static_cast<MemoryKind>(kind), kinds[kind]);
  }
}

}  // namespace

Memory memory_of(const CompiledStep& step, int64_t limit) {
  Memory memory;
  memory.total = step.buffers.hbm_bytes();
  memory.limit = limit;
  memory.host = step.buffers.host_bytes();
  Layout layout(step);
  std::vector<Piece>& pieces = layout.pieces();
  if (pieces.empty()) return memory;
  const Course course = run(pieces);
  memory.over_step = thin_out(course, std::max<int64_t>(step.buffers.schedule_length, 1));
  share_out(pieces, course, memory.total, memory);
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    const auto key = [](const Buffer& x) { return std::tuple(-x.bytes, !x.at_peak, std::string_view(x.name)); };
    return key(a.buffer) < key(b.buffer);
  });
  for (size_t i = 0; i < std::min(kLargest, pieces.size()); ++i) memory.largest.push_back(pieces[i].buffer);
  return memory;
}

}  // namespace flambeau::plan
