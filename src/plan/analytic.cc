#include "plan/analytic.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "hlo/compiled/analysis.h"
#include "plan/fusion.h"

namespace flambeau::plan {
namespace {

using hlo::Block;
using hlo::Node;
using hlo::Op;
using hlo::Value;
using hlo::compiled::LoopRole;

constexpr size_t kMostNamed = 10;

// ---- loops -----------------------------------------------------------------------------------------------------------

// Of a loop that for_loop built: index < constant. 1 for others.
double trips_of(const hlo::Graph& graph, const Node& loop) {
  const Node* compare = graph.definition(loop.regions[0]->results[0]);
  const Node* limit = compare && compare->op == Op::Compare ? graph.definition(compare->operands[1]) : nullptr;
  if (!limit || limit->op != Op::Constant) return 1;
  const auto& literal = std::get<hlo::Literal>(*limit->find("value"));
  if (literal.type.dtype != DType::S32 || literal.bytes.size() != 4) return 1;
  return *reinterpret_cast<const int32_t*>(literal.bytes.data());
}

bool has_part(std::string_view path, std::string_view part) {
  for (size_t at = path.find(part); at != std::string_view::npos; at = path.find(part, at + 1)) {
    const bool begins = at == 0 || path[at - 1] == '/', ends = at + part.size() == path.size() || path[at + part.size()] == '/';
    if (begins && ends) return true;
  }
  return false;
}

void count_sites(const Block& block, int& forward, int& backward) {
  for (const auto& node : block.nodes) {
    if (has_part(node->site, "layers")) ++(has_part(node->site, "backward") ? backward : forward);
    for (const auto& region : node->regions) count_sites(*region, forward, backward);
  }
}

// A backward loop repeats forward operations where activations are checkpointed: a fifth of backward ones makes it backward.
LoopRole role_of(const Node& loop) {
  int forward = 0, backward = 0;
  count_sites(*loop.regions[1], forward, backward);
  if (forward + backward == 0) return LoopRole::Other;
  return 4 * backward >= forward ? LoopRole::LayersBackward : LoopRole::LayersForward;
}

std::string place_name(LoopRole role) {
  return role == LoopRole::Other ? "outside of the layers" : std::string(hlo::compiled::name_of(role));
}

// ---- shapes ----------------------------------------------------------------------------------------------------------

// XLA's spelling, as the compiler's answers have it.
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

// As an array lies in memory: two of its dimensions, the ones that the compiler loses least by, fill tiles of 8 x 128
// elements.
double tiled_bytes(DType dtype, const hlo::Dims& dims) {
  const auto up = [](int64_t n, int64_t to) { return double((n + to - 1) / to * to); };
  const auto rows = [&](int64_t n) { return up(n, n > 4 ? 8 : n > 2 ? 4 : n); };
  if (dims.size() == 1) {  // one tile, of a power of two
    const auto tile = int64_t(std::bit_ceil(uint64_t(std::clamp<int64_t>(dims[0], 128, 1024))));
    return std::max(512.0, up(dims[0], tile) * double(byte_size(dtype)));
  }
  double elements = 1;
  for (const int64_t d : dims) elements *= double(d);
  double least = dims.empty() ? 1 : -1;
  for (size_t lane = 0; lane < dims.size(); ++lane) {
    for (size_t row = 0; row < dims.size(); ++row) {
      if (dims[lane] == 0 || dims[row] == 0) return 0;
      const double rest = elements / double(dims[lane]) / double(dims[row]) * rows(dims[row]);
      if (row == lane) continue;
      const double padded = rest * up(dims[lane], 128);
      least = least < 0 ? padded : std::min(least, padded);
    }
  }
  return std::max(512.0, least * double(byte_size(dtype)));
}

// ---- the walk --------------------------------------------------------------------------------------------------------

struct Held {  // memory in use
  uint32_t id = 0;
  double bytes = 0;
  std::string name, shape;
  MemoryKind kind = MemoryKind::Temporaries;
};

class Walk {
 public:
  Walk(const hlo::Graph& graph, std::span<const Argument> arguments, int64_t on_chip)
      : graph_(graph), arguments_(arguments), on_chip_(double(on_chip)), layouts_(graph), fusion_(graph, layouts_) {}

  AnalyticPlan run() {
    hold_arguments();
    Frame frame{.block = &graph_.body()};
    walk(frame);
    finish();
    return std::move(plan_);
  }

 private:
  // A block while it runs: where each of its values is read last, counted in its nodes.
  struct Frame {
    const Block* block = nullptr;
    double runs = 1;
    LoopRole role = LoopRole::Other;
    const Node* loop = nullptr;
    std::map<uint32_t, size_t> last = {};
    std::map<size_t, std::vector<size_t>> late = {};  // nodes that run before another one
    std::set<size_t> delayed = {};
  };

  static constexpr size_t kEnd = SIZE_MAX;

  Value storage(Value v) const {
    v = fusion_.storage(v);
    for (auto at = renamed_.find(v.id()); at != renamed_.end(); at = renamed_.find(v.id())) v = fusion_.storage(at->second);
    return v;
  }

  void hold_arguments() {
    for (size_t i = 0; i < graph_.parameters().size(); ++i) {
      const Value p = graph_.parameters()[i];
      const hlo::Dims dims = layouts_.local_dims(p);
      const Argument argument = i < arguments_.size() ? arguments_[i] : Argument{};
      const double bytes = tiled_bytes(p.dtype(), dims);
      hold({p.id(), bytes, argument.name, shape_text(p.dtype(), dims), argument.kind});
      argument_ids_.push_back(p.id());
      if (argument.kind == MemoryKind::Parameters) parameter_dims_.push_back(p.dims());
    }
  }

  // Whether a value was put into the host's memory, or is a stack of such rows.
  bool is_on_host(Value v) const {
    for (const Node* node = graph_.definition(v); node; node = graph_.definition(v)) {
      if (node->op == Op::DynamicUpdateSlice) v = node->operands[1];
      else if (node->op == Op::Reshape || node->op == Op::Transpose || node->op == Op::ShardingConstraint) v = node->operands[0];
      else return is_placed_on_host(*node);
    }
    return false;
  }
  static bool is_placed_on_host(const Node& node) {
    const auto* target = node.find("call_target_name");
    const auto* attributes = node.find(hlo::kFrontendAttributes);
    if (!target || !attributes || std::get<std::string>(*target) != "annotate_device_placement") return false;
    return std::get<hlo::RawAttribute>(*attributes).text.find("host") != std::string::npos;
  }

  void hold(Held held) {
    if (held.bytes <= 0) return;
    in_use_ += held.bytes;
    most_since_ = std::max(most_since_, in_use_);
    held_.push_back(std::move(held));
    if (in_use_ > peak_) {
      peak_ = in_use_;
      at_peak_ = held_;
    }
  }
  void release(uint32_t id) {
    for (size_t i = held_.size(); i-- > 0;) {
      if (held_[i].id != id) continue;
      in_use_ -= held_[i].bytes;
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }
  bool is_held(uint32_t id) const {
    return std::ranges::any_of(held_, [&](const Held& h) { return h.id == id; });
  }
  bool is_argument(uint32_t id) const { return std::ranges::find(argument_ids_, id) != argument_ids_.end(); }

  double size_of(Value v) const { return tiled_bytes(v.dtype(), layouts_.local_dims(v)); }

  Held held_for(Value v, const Node& node, double bytes, MemoryKind kind) const {
    return {v.id(), bytes, node.site, shape_text(v.dtype(), layouts_.local_dims(v)), kind};
  }

  MemoryKind kind_of(Value v, const Node& node) const {
    if (!fusion_.share(node).transfers.empty() && node.op != Op::While) return MemoryKind::Collectives;
    const bool like_parameter = std::ranges::find(parameter_dims_, v.dims()) != parameter_dims_.end();
    return like_parameter && v.dtype() == DType::F32 ? MemoryKind::Gradients : MemoryKind::Temporaries;
  }

  // ---- where values are read ----

  // Marks what `value` is made of as read at `position`.
  void mark(Frame& frame, Value value, size_t position) {
    for (const Read& read : fusion_.reads_of(value)) {
      size_t& last = frame.last.try_emplace(storage(read.buffer).id(), position).first->second;
      last = std::max(last, position);
    }
    size_t& last = frame.last.try_emplace(storage(value).id(), position).first->second;
    last = std::max(last, position);
  }

  bool is_kernel(const Node& node) const {
    if (node.results.empty()) return false;
    if (is_update(node) || !node.regions.empty()) return true;
    return std::ranges::any_of(node.results, [&](Value v) { return fusion_.form(v) == Form::Buffer; });
  }
  bool is_update(const Node& node) const { return node.op == Op::DynamicUpdateSlice && fusion_.form(node.results[0]) == Form::Alias; }

  // Sums over devices of what a device has summed up wait, seen of libtpu, until somebody wants them.
  void delay_sums(Frame& frame) {
    const auto& nodes = frame.block->nodes;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i]->op != Op::Reduce || fusion_.share(*nodes[i]).transfers.empty()) continue;
      if (fusion_.form(nodes[i]->results[0]) != Form::Buffer) continue;
      for (size_t user = i + 1; user < nodes.size(); ++user) {
        if (!is_kernel(*nodes[user])) continue;
        const bool reads = std::ranges::any_of(nodes[user]->operands, [&](Value v) {
          return std::ranges::any_of(fusion_.reads_of(v), [&](const Read& r) { return r.buffer == nodes[i]->results[0]; });
        });
        if (!reads) continue;
        frame.late[user].push_back(i);
        frame.delayed.insert(i);
        break;
      }
    }
  }

  void mark_block(Frame& frame, const Block& block, std::optional<size_t> position) {
    std::map<size_t, size_t> runs_at;
    if (!position)
      for (const auto& [at, nodes] : frame.late)
        for (const size_t i : nodes) runs_at[i] = at;
    for (size_t i = 0; i < block.nodes.size(); ++i) {
      const Node& node = *block.nodes[i];
      const size_t at = position.value_or(runs_at.contains(i) ? runs_at[i] : i);
      if (is_kernel(node))
        for (const Value v : node.operands) mark(frame, v, at);
      if (node.op == Op::While || node.op == Op::ManualComputation || node.op == Op::If || node.op == Op::Case)
        for (const auto& region : node.regions) mark_block(frame, *region, at);
    }
    for (const Value v : block.results) mark(frame, v, position.value_or(kEnd));
  }

  // ---- running ----

  void walk(Frame& frame) {
    delay_sums(frame);
    mark_block(frame, *frame.block, std::nullopt);
    for (const Hoisted& h : fusion_.hoisted()) hoist_.try_emplace(&h, false);
    for (size_t i = 0; i < frame.block->nodes.size(); ++i) {
      const Node& node = *frame.block->nodes[i];
      if (const auto late = frame.late.find(i); late != frame.late.end())
        for (const size_t before : late->second) run(*frame.block->nodes[before], frame, i);
      begin_hoisted(node, frame);
      count(node, frame);
      if (node.op == Op::While) run_loop(node, frame, i);
      else if (node.op == Op::ManualComputation) run_manual(node, frame);
      else if (node.op == Op::If || node.op == Op::Case) run_branches(node, frame);
      else if (!frame.delayed.contains(i)) run(node, frame, i);
      end_hoisted(node);
      release_dead(frame, i);
      samples_.push_back(most_since_);
      most_since_ = in_use_;
    }
  }

  void run(const Node& node, Frame& frame, size_t position) {
    if (!is_kernel(node) || is_update(node)) return;
    // A kernel of element-wise operations writes over an operand that nobody reads any more.
    bool in_place = node.op != Op::DotGeneral && node.op != Op::Gather && node.op != Op::Reduce;
    for (const Value v : node.results) {
      if (fusion_.form(v) != Form::Buffer) continue;
      const double bytes = size_of(v);
      if (in_place) {
        for (const Read& read : fusion_.reads(node)) {
          const uint32_t id = storage(read.buffer).id();
          const auto last = frame.last.find(id);
          if (last != frame.last.end() && last->second == position && is_held(id) && !is_argument(id) &&
              size_of(read.buffer) == bytes) {
            release(id);
            break;
          }
        }
      }
      if (is_result_over_argument(v) || is_on_host(v)) continue;
      double parts = 0;
      for (const Transfer& t : fusion_.share(node).transfers)
        if (node.op == Op::DotGeneral || node.op == Op::Reduce) parts = std::max(parts, t.bytes / t.count);
      if (parts > 0) hold(held_for(v, node, parts, MemoryKind::Collectives)), release(v.id());
      hold(held_for(v, node, bytes, kind_of(v, node)));
    }
  }

  // Results that take over a parameter's memory.
  bool is_result_over_argument(Value v) const {
    for (size_t i = 0; i < graph_.parameters().size(); ++i) {
      const auto output = graph_.parameter_signature(i).aliasing_output;
      if (output && graph_.resolve(graph_.results()[size_t(*output)]) == v) return true;
    }
    return false;
  }

  void release_dead(const Frame& frame, size_t position) {
    std::vector<uint32_t> dead;
    for (const Held& h : held_) {
      const auto last = frame.last.find(h.id);
      const bool is_dead = last != frame.last.end() && last->second <= position;
      if (is_dead && !is_argument(h.id) && !protected_.contains(h.id)) dead.push_back(h.id);
    }
    for (const uint32_t id : dead) release(id);
  }

  // State of a loop lies in memory that it was given, or gets a copy where that is still wanted; what the body does not
  // change stays where it is.
  void run_loop(const Node& loop, Frame& outer, size_t position) {
    const Block& body = *loop.regions[1];
    Frame frame{.block = &body, .runs = outer.runs * trips_of(graph_, loop), .role = outer.role, .loop = &loop};
    if (outer.role == LoopRole::Other) frame.role = role_of(loop);
    std::vector<uint32_t> state;
    for (size_t i = 0; i < loop.operands.size(); ++i) {
      const Value parameter = body.parameters[i], given = storage(loop.operands[i]);
      if (fusion_.form(parameter) == Form::Nothing) continue;
      if (body.results[i] == parameter) {  // invariant
        renamed_[parameter.id()] = loop.operands[i];
        renamed_[loop.results[i].id()] = loop.operands[i];
        continue;
      }
      const auto last = outer.last.find(given.id());
      const bool is_last = last != outer.last.end() && last->second == position;
      if (is_last && !is_argument(given.id()) && !protected_.contains(given.id())) release(given.id());
      MemoryKind kind = kind_of(parameter, loop);
      const bool stacks = storage(body.results[i]) == parameter;
      if (stacks && frame.role == LoopRole::LayersForward && outer.role == LoopRole::Other) kind = MemoryKind::SavedActivations;
      Held held = held_for(parameter, loop, size_of(parameter), kind);
      held.name = site_of(body.results[i], loop.site);
      if (is_on_host(body.results[i])) {
        plan_.memory.host += int64_t(held.bytes);
        on_host_.insert(loop.results[i].id());
        continue;
      }
      hold(held);
      state.push_back(parameter.id());
      kinds_[loop.results[i].id()] = kind;
      names_[loop.results[i].id()] = held.name;
    }
    protect(outer, [&] { walk(frame); });
    // What the last turn left is the result.
    for (size_t i = 0; i < loop.results.size(); ++i) {
      const Value parameter = body.parameters[i], result = loop.results[i];
      if (fusion_.form(parameter) == Form::Nothing || body.results[i] == parameter) continue;
      if (on_host_.contains(result.id())) continue;
      release(parameter.id());
      release(storage(body.results[i]).id());
      const std::string shape = shape_text(result.dtype(), layouts_.local_dims(result));
      hold({result.id(), size_of(result), names_[result.id()], shape, kinds_[result.id()]});
    }
  }

  std::string site_of(Value v, const std::string& otherwise) const {
    const Node* node = graph_.definition(v);
    while (node && node->op == Op::DynamicUpdateSlice && node->operands.size() > 1) {
      const Node* update = graph_.definition(node->operands[1]);
      while (update && (update->op == Op::Reshape || update->op == Op::Convert || update->op == Op::BroadcastInDim))
        update = graph_.definition(update->operands[0]);
      if (!update) break;
      return update->site;
    }
    return node && !node->site.empty() ? node->site : otherwise;
  }

  void run_manual(const Node& node, Frame& outer) {
    const Block& body = *node.regions[0];
    for (size_t i = 0; i < node.operands.size(); ++i) renamed_[body.parameters[i].id()] = node.operands[i];
    Frame frame{.block = &body, .runs = outer.runs, .role = outer.role, .loop = outer.loop};
    protect(outer, [&] { walk(frame); });
    for (size_t i = 0; i < node.results.size(); ++i) {
      const Value result = node.results[i], made = storage(body.results[i]);
      if (fusion_.form(result) == Form::Nothing) continue;
      const auto held = std::ranges::find_if(held_, [&](const Held& h) { return h.id == made.id(); });
      if (held != held_.end() && !is_argument(made.id())) {
        held->id = result.id();
      } else {
        hold(held_for(result, node, size_of(result), kind_of(result, node)));
      }
    }
  }

  // All of them count.
  void run_branches(const Node& node, Frame& outer) {
    for (const auto& region : node.regions) {
      Frame frame{.block = region.get(), .runs = outer.runs, .role = outer.role, .loop = outer.loop};
      protect(outer, [&] { walk(frame); });
      for (const Value v : region->results) release_local(storage(v).id(), outer);
    }
    for (const Value v : node.results)
      if (fusion_.form(v) == Form::Buffer) hold(held_for(v, node, size_of(v), kind_of(v, node)));
  }
  void release_local(uint32_t id, const Frame& outer) {
    if (!outer.last.contains(id) && !is_argument(id)) release(id);
  }

  // What is held outside is not released by what runs inside.
  template <class Run>
  void protect(const Frame& outer, Run&& run) {
    const std::set<uint32_t> before = protected_;
    for (const Held& h : held_)
      if (outer.last.contains(h.id)) protected_.insert(h.id);
    run();
    protected_ = before;
  }

  void begin_hoisted(const Node& node, const Frame& frame) {
    if (node.op != Op::While) return;
    for (const Hoisted& h : fusion_.hoisted()) {
      if (h.loops.front() != &node && !contains_loop(node, h.loops.front())) continue;
      if (hoist_.at(&h) || is_within(node, graph_.block_of(h.stack))) continue;
      hoist_[&h] = true;
      const uint32_t id = hoist_id(h);
      hold({id, h.bytes, h.site, shape_text(h.dtype, layouts_.local_dims(h.stack)), MemoryKind::Temporaries});
      protected_.insert(id);
      traffic(frame.runs * (layouts_.local_bytes(h.stack) + h.bytes));
    }
  }
  void end_hoisted(const Node& node) {
    if (node.op != Op::While) return;
    for (const Hoisted& h : fusion_.hoisted())
      if (h.loops.back() == &node || (hoist_.at(&h) && contains_loop(node, h.loops.back()))) release(hoist_id(h));
  }
  uint32_t hoist_id(const Hoisted& h) const {
    return static_cast<uint32_t>(graph_.value_count() + static_cast<size_t>(&h - fusion_.hoisted().data()));
  }
  static bool is_within(const Node& outer, uint32_t block) {
    for (const auto& region : outer.regions) {
      if (region->id == block) return true;
      for (const auto& node : region->nodes)
        if (is_within(*node, block)) return true;
    }
    return false;
  }
  static bool contains_loop(const Node& outer, const Node* loop) {
    for (const auto& region : outer.regions)
      for (const auto& node : region->nodes)
        if (node.get() == loop || contains_loop(*node, loop)) return true;
    return false;
  }

  // ---- work ----

  void traffic(double bytes) { plan_.work.hbm_bytes += bytes; }

  // What an innermost loop makes and uses itself, its state too, where it is small beside the memory on the chip.
  bool stays_on_chip(Value v, const Frame& frame) const {
    if (!frame.loop || layouts_.local_bytes(v) > on_chip_ / 2) return false;
    const Block& body = *frame.loop->regions[1];
    const bool is_innermost = std::ranges::none_of(body.nodes, [](const auto& n) { return n->op == Op::While; });
    return is_innermost && graph_.block_of(v) == body.id;
  }

  void count(const Node& node, const Frame& frame) {
    const Share& share = fusion_.share(node);
    plan_.work.flops += frame.runs * share.flops;
    plan_.flops_at[place_name(frame.role)] += frame.runs * share.flops;
    for (const Transfer& t : share.transfers) {
      plan_.work.collective_bytes += frame.runs * t.bytes;
      CollectiveGroup& group = groups_[{std::string(t.kind), t.axes, t.dtype, frame.role}];
      group.count += frame.runs * t.count;
      group.bytes += frame.runs * t.bytes;
      traffic(frame.runs * 2 * t.bytes);
    }
    if (!is_kernel(node) || node.op == Op::While || node.op == Op::ManualComputation) return;
    double bytes = 0;
    for (const Read& read : is_update(node) ? fusion_.reads_of(node.operands[1]) : fusion_.reads(node))
      if (!stays_on_chip(read.buffer, frame)) bytes += read.bytes;
    if (is_update(node)) bytes += layouts_.local_bytes(node.operands[1]);
    else
      for (const Value v : node.results)
        if (fusion_.form(v) == Form::Buffer && !stays_on_chip(v, frame)) bytes += layouts_.local_bytes(v);
    // Put together, then copied to how products want it, seen of libtpu.
    if (node.op == Op::Concatenate) bytes += 2 * layouts_.local_bytes(node.results[0]);
    traffic(frame.runs * bytes);
  }

  // ---- the end ----

  void finish() {
    Memory& memory = plan_.memory;
    std::map<MemoryKind, double> kinds;
    for (const Held& h : at_peak_) {
      kinds[h.kind] += h.bytes;
      memory.largest.push_back({h.name, h.kind, h.shape, int64_t(h.bytes), 0, true});
    }
    for (const auto& [kind, bytes] : kinds) {
      memory.by_kind.emplace_back(kind, int64_t(bytes));
      memory.total += int64_t(bytes);
    }
    std::ranges::stable_sort(memory.largest, [](const Buffer& a, const Buffer& b) { return a.bytes > b.bytes; });
    if (memory.largest.size() > kMostNamed) memory.largest.resize(kMostNamed);
    for (size_t i = 0; i < samples_.size(); ++i)
      memory.over_step.emplace_back(double(i) / double(std::max<size_t>(1, samples_.size() - 1)), int64_t(samples_[i]));
    for (auto& [key, group] : groups_) {
      const auto& [kind, axes, dtype, role] = key;
      group.kind = kind;
      group.axes = layouts_.name(axes);
      group.group_size = layouts_.parts(axes);
      group.type = type_name(dtype);
      group.place = place_name(role);
      plan_.collectives.push_back(group);
    }
    std::ranges::stable_sort(plan_.collectives,
                             [](const CollectiveGroup& a, const CollectiveGroup& b) { return a.bytes > b.bytes; });
  }

  const hlo::Graph& graph_;
  std::span<const Argument> arguments_;
  double on_chip_;
  Layouts layouts_;
  Fusion fusion_;
  AnalyticPlan plan_;
  std::vector<uint32_t> argument_ids_;
  std::vector<hlo::Dims> parameter_dims_;
  std::map<uint32_t, Value> renamed_;  // values within bodies that are values outside
  std::map<uint32_t, MemoryKind> kinds_;
  std::map<uint32_t, std::string> names_;
  std::map<const Hoisted*, bool> hoist_;
  std::set<uint32_t> protected_, on_host_;
  std::vector<Held> held_, at_peak_;
  double in_use_ = 0, peak_ = 0, most_since_ = 0;
  std::vector<double> samples_;
  std::map<std::tuple<std::string, AxisSet, DType, LoopRole>, CollectiveGroup> groups_;
};

}  // namespace

int64_t on_chip_memory(Generation generation) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  switch (generation) {
    case Generation::V5e: case Generation::V6e: return 128 * kMiB;
    case Generation::V7x: return 64 * kMiB;
    case Generation::V4: case Generation::V5p: return 16 * kMiB;
  }
  return 0;
}

AnalyticPlan analyze_graph(const hlo::Graph& graph, std::span<const Argument> arguments, int64_t on_chip) {
  return Walk(graph, arguments, on_chip).run();
}

AnalyticPlan analyze_step(const StepProgram& step, Generation generation) {
  FLAMBEAU_CHECK(step.program && step.program->graph, "a step that was recorded for planning keeps its graph");
  return analyze_graph(*step.program->graph, step.arguments, on_chip_memory(generation));
}

}  // namespace flambeau::plan
