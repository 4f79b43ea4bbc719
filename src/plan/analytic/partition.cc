#include "plan/analytic/partition.h"

#include <algorithm>
#include <bit>
#include <variant>

#include "compiled/kernel_cost.h"

namespace flambeau::plan {
namespace {

using hlo::Node;
using hlo::Op;
using hlo::Value;

// Seen of libtpu: sums of a matrix product are scattered in a ring where one of its operands, on all devices together, has
// at least so many bytes, the ring so many devices, and nothing is summed over other axes too.
constexpr double kWindowedBytes = double(256 << 20);
constexpr int64_t kShortestRing = 8, kLongestRing = 32;
constexpr int64_t kLanes = 128;  // elements side by side in memory

class Partitioner {
 public:
  Partitioner(const Layouts& layouts, const Node& node) : layouts_(layouts), node_(node) {}

  Share share() {
    switch (node_.op) {
      case Op::Constant: case Op::Iota: case Op::While: case Op::If: case Op::Case: case Op::PartitionId: break;
      case Op::DotGeneral: dot(); break;
      case Op::Convolution: convolution(); break;
      case Op::Reduce: reduce(); break;
      case Op::CustomCall: kernel(); break;
      case Op::ShardingConstraint:
        reshard(node_.operands[0], layouts_.of(node_.operands[0]), layouts_.of(node_.results[0]));
        break;
      case Op::ManualComputation: manual(); break;
      case Op::AllReduce: send("all-reduce"); break;
      case Op::AllGather: send("all-gather"); break;
      case Op::ReduceScatter: send("reduce-scatter"); break;
      case Op::AllToAll: send("all-to-all"); break;
      case Op::CollectivePermute: send("collective-permute"); break;
      default: elementwise(); break;
    }
    return std::move(share_);
  }

 private:
  void add(std::string_view kind, AxisSet axes, DType dtype, double bytes, double count = 1) {
    if (bytes > 0 && layouts_.parts(axes) > 1) share_.transfers.push_back({kind, axes, dtype, bytes, count});
  }

  // A collective that the program itself asks for.
  void send(std::string_view kind) {
    const double bytes = std::max(layouts_.local_bytes(node_.operands[0]), layouts_.local_bytes(node_.results[0]));
    add(kind, layouts_.axes_between(node_), node_.results[0].dtype(), bytes);
  }

  // Axes that go from one dimension to another are exchanged, those that go away gathered; those that come are free.
  void reshard(Value value, const Layout& from, const Layout& to) {
    AxisSet gone = 0, come = 0;
    for (size_t d = 0; d < from.size(); ++d) {
      gone |= from[d] & ~to[d];
      come |= to[d] & ~from[d];
    }
    add("all-to-all", gone & come, value.dtype(), layouts_.local_bytes(value, from));
    add("all-gather", gone & ~come, value.dtype(), layouts_.local_bytes(value, to));
  }

  // The result, made as parts of a sum over `summed`, comes to lie as its layout says.
  void sum_result(Value result, Layout made, AxisSet summed, bool windowed) {
    const Layout& wanted = layouts_.of(result);
    const DType dtype = result.dtype();
    Layout scattered = made;
    AxisSet scatter = 0;
    for (size_t d = 0; d < wanted.size(); ++d) {
      scatter |= wanted[d] & summed;
      scattered[d] |= wanted[d] & summed;
    }
    const AxisSet whole = summed & ~scatter;
    const double parts = double(layouts_.parts(scatter)), bytes = layouts_.local_bytes(result, made);
    // Parts that do not fill lanes are cut from a sum that every device has.
    const bool in_lanes = wanted.empty() || (wanted.back() & scatter) == 0 || layouts_.local_dims(result).back() % kLanes == 0;
    if (windowed && whole == 0 && parts >= kShortestRing && parts <= kLongestRing)
      add("collective-permute", scatter, dtype, bytes * (parts + 1) / parts, parts + 1);
    else add(in_lanes ? "reduce-scatter" : "all-reduce", scatter, dtype, bytes);
    add("all-reduce", whole, dtype, layouts_.local_bytes(result, scattered));
    reshard(result, scattered, wanted);
  }

  void dot() {
    const std::vector<Factor> factors = factors_of(node_);
    std::vector<AxisSet> split(factors.size());
    std::vector<bool> contracts(factors.size());
    for (size_t f = 0; f < factors.size(); ++f)
      contracts[f] = std::ranges::none_of(factors[f], &Place::is_result);
    for (int64_t axis = 0; axis < layouts_.axis_count(); ++axis) {
      const AxisSet bit = AxisSet{1} << axis;
      if (const size_t f = factor_for(factors, contracts, bit); f < factors.size()) split[f] |= bit;
    }
    double flops = 2;
    AxisSet summed = 0;
    Layout lhs(size_t(node_.operands[0].rank())), rhs(size_t(node_.operands[1].rank())), made(size_t(node_.results[0].rank()));
    for (size_t f = 0; f < factors.size(); ++f) {
      const Place& first = factors[f].front();
      const int64_t size = first.value.dims()[first.dim], parts = layouts_.parts(split[f]);
      flops *= double((size + parts - 1) / parts);
      if (contracts[f]) summed |= split[f];
      for (const Place& place : factors[f]) (place.is_result() ? made : place.operand == 0 ? lhs : rhs)[place.dim] = split[f];
    }
    share_.flops = flops;
    reshard(node_.operands[0], layouts_.of(node_.operands[0]), lhs);
    if (!(node_.operands[0] == node_.operands[1])) reshard(node_.operands[1], layouts_.of(node_.operands[1]), rhs);
    const double largest = std::max(global_bytes(node_.operands[0]), global_bytes(node_.operands[1]));
    sum_result(node_.results[0], made, summed, largest >= kWindowedBytes);
  }

  static double global_bytes(Value value) { return double(value.type().bytes()); }

  // Along which index an axis splits the product.
  size_t factor_for(const std::vector<Factor>& factors, const std::vector<bool>& contracts, AxisSet bit) const {
    const auto has = [&](const Place& place) { return (layouts_.of(place.value)[place.dim] & bit) != 0; };
    size_t best = factors.size();
    int best_rank = 0;
    for (size_t f = 0; f < factors.size(); ++f) {
      const auto& places = factors[f];
      const auto holders = std::ranges::count_if(places, has);
      if (holders == 0 || places.front().value.dims()[places.front().dim] % layouts_.parts(bit) != 0) continue;
      // Contracting or batch dimensions that agree, then a free one that the result keeps, then what one operand has.
      const bool operand = std::ranges::any_of(places, [&](const Place& p) { return !p.is_result() && has(p); });
      const bool result = std::ranges::any_of(places, [&](const Place& p) { return p.is_result() && has(p); });
      const int rank = holders == std::ssize(places) ? 5 : operand && result ? 4 : operand ? (contracts[f] ? 2 : 3) : 1;
      if (rank > best_rank) best = f, best_rank = rank;
    }
    return best;
  }

  // Operations of the window for each result; layouts do not pass through convolutions, so operands are whole.
  void convolution() {
    const double window = double(node_.operands[1].elements()) / double(std::max<int64_t>(1, node_.operands[1].dim(0)));
    share_.flops = 2 * double(node_.results[0].elements()) * window;
    for (const Value x : node_.operands) reshard(x, layouts_.of(x), Layout(size_t(x.rank())));
  }

  void reduce() {
    const hlo::Dims& reduced = dims_of(node_, "dimensions");
    for (size_t i = 0; i < node_.results.size(); ++i) {
      const Layout& from = layouts_.of(node_.operands[i]);
      Layout made;
      AxisSet summed = 0;
      for (size_t d = 0; d < from.size(); ++d) {
        if (std::ranges::find(reduced, static_cast<int64_t>(d)) != reduced.end()) summed |= from[d];
        else made.push_back(from[d]);
      }
      // Seen: over all devices the sum is made whole everywhere and cut, over some of them it is scattered.
      const bool everyone = std::popcount(summed) == layouts_.axis_count() && axes_of(layouts_.of(node_.results[i])) == summed;
      if (everyone && axes_of(made) == 0) {
        add("all-reduce", summed, node_.results[i].dtype(), layouts_.local_bytes(node_.results[i], made));
      } else {
        sum_result(node_.results[i], made, summed, /*windowed=*/false);
      }
    }
  }

  // Made for the parts of one device.
  void kernel() {
    const auto* config = node_.find("backend_config");
    const auto* text = config == nullptr ? nullptr : std::get_if<std::string>(config);
    if (text != nullptr) {
      const compiled::KernelCost cost = compiled::kernel_cost(*text);
      share_.flops = cost.flops;
      share_.kernel_bytes = cost.bytes;
    }
    elementwise();
  }

  void manual() {
    const auto& in = std::get<std::vector<hlo::Sharding>>(*node_.find("in_shardings"));
    for (size_t i = 0; i < node_.operands.size(); ++i)
      reshard(node_.operands[i], layouts_.of(node_.operands[i]), layouts_.layout_of(in[i]));
  }

  // Operands have to lie as the result does; what no factor names is whole.
  void elementwise() {
    std::vector<Layout> wanted;
    for (const Value x : node_.operands) wanted.emplace_back(size_t(x.rank()));
    for (const Factor& factor : factors_of(node_)) {
      AxisSet axes = 0;
      for (const Place& place : factor)
        if (place.is_result()) axes = layouts_.of(place.value)[place.dim];
      if (std::ranges::none_of(factor, &Place::is_result))
        for (const Place& place : factor) axes |= layouts_.of(place.value)[place.dim];
      for (const Place& place : factor)
        if (!place.is_result()) wanted[static_cast<size_t>(place.operand)][place.dim] = axes;
    }
    for (size_t i = 0; i < wanted.size(); ++i) reshard(node_.operands[i], layouts_.of(node_.operands[i]), wanted[i]);
  }

  const Layouts& layouts_;
  const Node& node_;
  Share share_;
};

}  // namespace

const Transfer* ring_of(const Share& share) {
  const auto found = std::ranges::find_if(share.transfers, [](const Transfer& t) { return t.count > 1; });
  return found == share.transfers.end() ? nullptr : &*found;
}

Share share_of(const Layouts& layouts, const Node& node) { return Partitioner(layouts, node).share(); }

}  // namespace flambeau::plan
