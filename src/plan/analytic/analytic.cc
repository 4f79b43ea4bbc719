#include "plan/analytic/analytic.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "plan/analytic/fusion.h"
#include "plan/analytic/loops.h"
#include "plan/analytic/memory_use.h"
#include "plan/time/collectives.h"

namespace flambeau::plan {
namespace {

using hlo::Block;
using hlo::Node;
using hlo::Op;
using hlo::Value;

// Of its memory, what kernels leave to values that wait.
constexpr double kShareOfChip = 0.75;

class Walk {
 public:
  Walk(const hlo::Graph& graph, std::span<const Argument> arguments, int64_t on_chip)
      : graph_(graph), arguments_(arguments), on_chip_(kShareOfChip * double(on_chip)), layouts_(graph), fusion_(graph, layouts_), roles_(graph),
        is_argument_(graph.value_count()), is_over_argument_(graph.value_count()) {}

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
    std::unordered_map<uint32_t, size_t> last = {};
    std::vector<std::vector<uint32_t>> ends = {};     // of each node, what is read there last
    std::map<size_t, std::vector<size_t>> late = {};  // nodes that run before another one
    std::set<size_t> delayed = {};

    bool reads_last(uint32_t id, size_t position) const {
      const auto found = last.find(id);
      return found != last.end() && found->second == position;
    }
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
      memory_.hold({p.id(), bytes, argument.name, shape_text(p.dtype(), dims), argument.kind});
      is_argument_[p.id()] = true;
      if (argument.kind == MemoryKind::Parameters) parameter_dims_.insert(p.dims());
      if (const auto output = graph_.parameter_signature(i).aliasing_output)
        is_over_argument_[graph_.resolve(graph_.results()[size_t(*output)]).id()] = true;
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

  bool is_argument(uint32_t id) const { return id < is_argument_.size() && is_argument_[id]; }
  // Nobody beyond this block, or its next iteration, wants it.
  bool may_end(uint32_t id) const { return !is_argument(id) && !protected_.contains(id); }

  double size_of(Value v) const { return tiled_bytes(v.dtype(), layouts_.local_dims(v)); }

  Held held_for(Value v, const Node& node, double bytes, MemoryKind kind) const {
    return {v.id(), bytes, node.site, shape_text(v.dtype(), layouts_.local_dims(v)), kind};
  }

  MemoryKind kind_of(Value v, const Node& node) const {
    if (!fusion_.share(node).transfers.empty() && node.op != Op::While) return MemoryKind::Collectives;
    return v.dtype() == DType::F32 && parameter_dims_.contains(v.dims()) ? MemoryKind::Gradients : MemoryKind::Temporaries;
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

  // Sums over devices of what a device has summed up wait, seen of libtpu, until somebody wants them, a barrier at last.
  void delay_sums(Frame& frame) {
    const auto& nodes = frame.block->nodes;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i]->op != Op::Reduce || fusion_.share(*nodes[i]).transfers.empty()) continue;
      if (fusion_.form(nodes[i]->results[0]) != Form::Buffer) continue;
      for (size_t user = i + 1; user < nodes.size(); ++user) {
        if (!is_kernel(*nodes[user]) && nodes[user]->op != Op::OptimizationBarrier) continue;
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
      if (runs_regions(node.op))
        for (const auto& region : node.regions) mark_block(frame, *region, at);
    }
    for (const Value v : block.results) mark(frame, v, position.value_or(kEnd));
  }

  // ---- running ----

  void walk(Frame& frame) {
    delay_sums(frame);
    mark_block(frame, *frame.block, std::nullopt);
    frame.ends.resize(frame.block->nodes.size());
    for (const auto& [id, position] : frame.last)
      if (position < frame.ends.size()) frame.ends[position].push_back(id);
    place_on_chip(frame);
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
      end_hoisted(node, frame);
      release_dead(frame, i);
      memory_.end_step();
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
          if (!frame.reads_last(id, position) || !memory_.holds(id) || !may_end(id) || size_of(read.buffer) != bytes) continue;
          memory_.release(id);
          break;
        }
      }
      if (is_over_argument_[v.id()] || is_on_host(v)) continue;
      double parts = 0;
      for (const Transfer& t : fusion_.share(node).transfers)
        if (node.op == Op::DotGeneral || node.op == Op::Reduce) parts = std::max(parts, t.bytes / t.count);
      if (parts > 0) memory_.hold(held_for(v, node, parts, MemoryKind::Collectives));  // in the place of the result, before it
      memory_.hold(held_for(v, node, bytes, kind_of(v, node)));
    }
  }

  void release_dead(const Frame& frame, size_t position) {
    for (const uint32_t id : frame.ends[position])
      if (may_end(id)) memory_.release(id);
  }

  // An element of a loop's state that its iterations change, under the names that it has for the report.
  struct Carried {
    size_t index = 0;
    bool on_host = false;
    std::string name;
    MemoryKind kind = MemoryKind::Temporaries;
  };

  // State of a loop lies in memory that it was given, or gets a copy where that is still wanted; what the body does not
  // change stays where it is.
  void run_loop(const Node& loop, Frame& outer, size_t position) {
    const Block& body = *loop.regions[1];
    Frame frame{.block = &body, .runs = outer.runs * trips_of(loop), .role = roles_.of(loop), .loop = &loop};
    std::vector<Carried> carried;
    for (size_t i = 0; i < loop.operands.size(); ++i) {
      const Value parameter = body.parameters[i];
      if (fusion_.form(parameter) == Form::Nothing) continue;
      if (body.results[i] == parameter) {  // invariant
        renamed_[parameter.id()] = loop.operands[i];
        renamed_[loop.results[i].id()] = loop.operands[i];
        continue;
      }
      const uint32_t given = storage(loop.operands[i]).id();
      if (outer.reads_last(given, position) && may_end(given)) memory_.release(given);
      carried.push_back(carry(loop, i, frame.role));
      Held held = held_for(parameter, loop, size_of(parameter), carried.back().kind);
      held.name = carried.back().name;
      if (carried.back().on_host) host_bytes_ += held.bytes;
      else memory_.hold(std::move(held));
    }
    protect(outer, *frame.block, [&] { walk(frame); });
    // What the last iteration left is the result.
    for (const Carried& c : carried) {
      if (c.on_host) continue;
      memory_.release(body.parameters[c.index].id());
      memory_.release(storage(body.results[c.index]).id());
      Held held = held_for(loop.results[c.index], loop, size_of(loop.results[c.index]), c.kind);
      held.name = c.name;
      memory_.hold(std::move(held));
    }
  }

  Carried carry(const Node& loop, size_t i, LoopRole role) const {
    const Value parameter = loop.regions[1]->parameters[i], next = loop.regions[1]->results[i];
    const bool saves = role == LoopRole::LayersForward && storage(next) == parameter;  // row by row
    return {i, is_on_host(next), site_of(next, loop.site), saves ? MemoryKind::SavedActivations : kind_of(parameter, loop)};
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
    protect(outer, *frame.block, [&] { walk(frame); });
    for (size_t i = 0; i < node.results.size(); ++i) {
      const Value result = node.results[i], made = storage(body.results[i]);
      if (fusion_.form(result) == Form::Nothing) continue;
      if (memory_.holds(made.id()) && !is_argument(made.id())) memory_.hand_over(made.id(), result.id());
      else memory_.hold(held_for(result, node, size_of(result), kind_of(result, node)));
    }
  }

  // All of them count.
  void run_branches(const Node& node, Frame& outer) {
    for (const auto& region : node.regions) {
      Frame frame{.block = region.get(), .runs = outer.runs, .role = outer.role, .loop = outer.loop};
      protect(outer, *frame.block, [&] { walk(frame); });
      for (const Value v : region->results)
        if (const uint32_t id = storage(v).id(); !outer.last.contains(id) && !is_argument(id)) memory_.release(id);
    }
    for (const Value v : node.results)
      if (fusion_.form(v) == Form::Buffer) memory_.hold(held_for(v, node, size_of(v), kind_of(v, node)));
  }

  // What is held outside is not released by what runs inside, which may do what it likes with its own parameters.
  template <class Run>
  void protect(const Frame& outer, const Block& inner, Run&& run) {
    const std::set<uint32_t> before = protected_;
    std::set<uint32_t> own;
    for (const Value v : inner.parameters) own.insert(v.id());
    for (const auto& [id, held] : memory_.held())
      if (outer.last.contains(id) && !own.contains(id)) protected_.insert(id);
    run();
    protected_ = before;
  }

  void begin_hoisted(const Node& node, const Frame& frame) {
    if (node.op != Op::While) return;
    for (const Hoisted& h : fusion_.hoisted()) {
      if (!is_within(node, h.loops.front()->regions[1]->id) || is_within(node, graph_.block_of(h.stack))) continue;
      const uint32_t id = hoist_id(h);
      if (!hoisted_.emplace(id, frame.block).second) continue;
      memory_.hold({id, h.bytes, h.site, shape_text(h.dtype, layouts_.local_dims(h.stack)), MemoryKind::Temporaries});
      protected_.insert(id);
      traffic(frame.runs * (layouts_.local_bytes(h.stack) + h.bytes));
    }
  }
  void end_hoisted(const Node& node, const Frame& frame) {
    if (node.op != Op::While) return;
    for (const Hoisted& h : fusion_.hoisted()) {
      const auto begun = hoisted_.find(hoist_id(h));
      if (begun != hoisted_.end() && begun->second == frame.block && is_within(node, h.loops.back()->regions[1]->id))
        memory_.release(begun->first);
    }
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

  // ---- work ----

  void traffic(double bytes) { plan_.work.hbm_bytes += bytes; }

  // An innermost loop keeps on the chip what an iteration makes and uses up, as long as there is room, then what it hands to the
  // next iteration, the smallest first.
  void place_on_chip(const Frame& frame) {
    if (!frame.loop || frame.block != frame.loop->regions[1].get() || holds_loop(*frame.block)) return;
    double in_use = 0, most = 0;
    std::unordered_map<uint32_t, double> placed;
    for (size_t i = 0; i < frame.block->nodes.size(); ++i) {
      const Node& node = *frame.block->nodes[i];
      for (const Value v : node.results) {
        const bool made = fusion_.form(v) == Form::Buffer && !frame.reads_last(v.id(), kEnd) && frame.last.contains(v.id());
        if (!made || in_use + layouts_.local_bytes(v) >= on_chip_) continue;
        in_use += layouts_.local_bytes(v);
        most = std::max(most, in_use);
        stays_on_chip_.insert(v.id());
        placed.emplace(v.id(), layouts_.local_bytes(v));
      }
      for (const uint32_t id : frame.ends[i])
        if (const auto found = placed.find(id); found != placed.end()) in_use -= found->second;
    }
    std::vector<size_t> state;
    for (size_t i = 0; i < frame.block->parameters.size(); ++i) {
      const Value v = frame.block->parameters[i];
      if (fusion_.form(v) != Form::Nothing && frame.block->results[i] != v) state.push_back(i);
    }
    std::ranges::sort(state, {}, [&](size_t i) { return layouts_.local_bytes(frame.block->parameters[i]); });
    for (const size_t i : state) {
      most += layouts_.local_bytes(frame.block->parameters[i]);
      if (most >= on_chip_) return;
      stays_on_chip_.insert(frame.block->parameters[i].id());
      stays_on_chip_.insert(storage(frame.block->results[i]).id());
    }
  }
  static bool holds_loop(const Block& block) {
    return std::ranges::any_of(block.nodes, [](const auto& node) {
      return node->op == Op::While || std::ranges::any_of(node->regions, [](const auto& r) { return holds_loop(*r); });
    });
  }

  void count(const Node& node, const Frame& frame) {
    const Share& share = fusion_.share(node);
    plan_.work.flops += frame.runs * share.flops;
    plan_.flops_at[std::string(place_of(frame.role))] += frame.runs * share.flops;
    for (const Transfer& t : share.transfers) {
      plan_.work.collective_bytes += frame.runs * t.bytes;
      CollectiveGroup& group = groups_[{std::string(t.kind), t.axes, t.dtype, frame.role}];
      group.count += frame.runs * t.count;
      group.bytes += frame.runs * t.bytes;
      traffic(frame.runs * moved_by(t));
    }
    if (!is_kernel(node) || is_collective(node.op) || runs_regions(node.op)) return;
    traffic(frame.runs * (is_update(node) ? moved_by_update(node) : moved_by_kernel(node)));
  }

  bool stays_on_chip(Value v) const { return stays_on_chip_.contains(v.id()); }

  // A transfer reads its operand and writes its result, of which `bytes` is the larger.
  double moved_by(const Transfer& t) const {
    const bool is_smaller = t.kind == "all-gather" || t.kind == "reduce-scatter";
    return t.bytes * (1 + (is_smaller ? 1 / double(layouts_.parts(t.axes)) : 1));
  }

  double read_from(const std::vector<Read>& reads) const {
    double bytes = 0;
    for (const Read& read : reads)
      if (!stays_on_chip(read.buffer)) bytes += read.bytes;
    return bytes;
  }

  double moved_by_update(const Node& node) const {
    const double written = stays_on_chip(fusion_.storage(node.results[0])) ? 0 : layouts_.local_bytes(node.operands[1]);
    return read_from(fusion_.reads_of(node.operands[1])) + written;
  }

  double moved_by_kernel(const Node& node) const {
    const Share& share = fusion_.share(node);
    double bytes = read_from(fusion_.reads(node));
    if (const Transfer* ring = ring_of(share)) return bytes + moved_around(node, *ring);
    for (const Value v : node.results) {
      if (fusion_.form(v) != Form::Buffer || stays_on_chip(v)) continue;
      // What is then summed over devices is written whole.
      const bool parts = !share.transfers.empty() && (node.op == Op::DotGeneral || node.op == Op::Reduce);
      bytes += parts ? share.transfers[0].bytes : layouts_.local_bytes(v);
    }
    // Put together, then copied to how products want it, seen of libtpu.
    if (node.op == Op::Concatenate) bytes += 2 * layouts_.local_bytes(node.results[0]);
    return std::max(bytes, share.kernel_bytes);
  }

  // Beside what it sends, a ring makes two parts of the result at a time, each of a part of one operand and of all of the
  // other. Parts that the chip does not hold are written, added to the sums that arrive, and put in order.
  double moved_around(const Node& node, const Transfer& ring) const {
    constexpr double kPasses = 1 + 3 + 1;
    const double part = ring.bytes / ring.count, parts = ring.count - 1;
    double bytes = part < on_chip_ ? 0 : kPasses * part * parts;
    for (const Factor& factor : factors_of(node)) {
      const auto result = std::ranges::find_if(factor, &Place::is_result);
      if (result == factor.end() || (layouts_.of(result->value)[result->dim] & ring.axes) == 0) continue;
      const Value whole = node.operands[factor.front().operand == 0 ? 1 : 0];
      bytes += (std::max(1.0, parts / 2) - 1) * read_from(fusion_.reads_of(whole));
      break;
    }
    return bytes;
  }

  static bool runs_regions(Op op) { return op == Op::While || op == Op::ManualComputation || op == Op::If || op == Op::Case; }
  static bool is_collective(Op op) {
    return op == Op::ShardingConstraint || op == Op::AllReduce || op == Op::AllGather || op == Op::ReduceScatter || op == Op::AllToAll ||
           op == Op::CollectivePermute;
  }

  // ---- the end ----

  void finish() {
    plan_.memory = memory_.take();
    plan_.memory.host = int64_t(host_bytes_);
    std::vector<std::pair<CollectiveGroup, AxisSet>> found;
    for (auto& [key, group] : groups_) {
      const auto& [kind, axes, dtype, role] = key;
      group.kind = kind;
      group.axes = layouts_.name(axes);
      group.group_size = layouts_.parts(axes);
      group.type = type_name(dtype);
      group.place = place_of(role);
      found.emplace_back(std::move(group), axes);
    }
    std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.first.bytes > b.first.bytes; });
    for (auto& [group, axes] : found) {
      plan_.collectives.push_back(std::move(group));
      plan_.axes.push_back(axes);
    }
  }

  const hlo::Graph& graph_;
  std::span<const Argument> arguments_;
  double on_chip_;
  Layouts layouts_;
  Fusion fusion_;
  AnalyticPlan plan_;
  RecordedRoles roles_;
  MemoryUse memory_;
  double host_bytes_ = 0;
  std::vector<bool> is_argument_, is_over_argument_;  // values: parameters, and results that take over their memory
  std::set<hlo::Dims> parameter_dims_;
  std::unordered_map<uint32_t, Value> renamed_;  // values within bodies that are values outside
  std::set<uint32_t> protected_;
  std::unordered_set<uint32_t> stays_on_chip_;
  std::unordered_map<uint32_t, const Block*> hoisted_;  // where what is moved out of loops begins to lie
  std::map<std::tuple<std::string, AxisSet, DType, LoopRole>, CollectiveGroup> groups_;
};

}  // namespace

AnalyticPlan analyze_graph(const hlo::Graph& graph, std::span<const Argument> arguments, int64_t on_chip) {
  return Walk(graph, arguments, on_chip).run();
}

AnalyticPlan analyze_step(const StepProgram& step, Generation generation) {
  FLAMBEAU_CHECK(step.program && step.program->graph, "a step that was recorded for planning keeps its graph");
  return analyze_graph(*step.program->graph, step.arguments, chip_of(generation).on_chip_memory);
}

}  // namespace flambeau::plan
