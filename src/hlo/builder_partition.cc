// Custom calls and what has to do with meshes.
#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hlo/builder.h"
#include "hlo/print.h"
#include "hlo/regions.h"
#include "hlo/sharding.h"

namespace flambeau::hlo {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

std::string join(const std::vector<std::string>& parts) { return fmt::format("[{}]", fmt::join(parts, ", ")); }

// Row-major layouts, one a type: [dense<[1, 0]> : tensor<2xindex>, ...].
std::string layouts(std::span<const Type> types) {
  std::vector<std::string> parts;
  for (const Type& type : types) {
    Dims order;
    for (int64_t d = type.rank() - 1; d >= 0; --d) order.push_back(d);
    parts.push_back(order.empty() ? "dense<> : tensor<0xindex>"
                                  : fmt::format("dense<[{}]> : tensor<{}xindex>", fmt::join(order, ", "), order.size()));
  }
  return join(parts);
}

Literal id_table(const std::vector<Dims>& rows, int64_t columns) {
  std::string bytes;
  for (const Dims& row : rows) bytes.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(int64_t));
  return {{DType::S64, {static_cast<int64_t>(rows.size()), columns}}, std::move(bytes)};
}

}  // namespace

std::vector<Value> Builder::custom_call(std::span<const Value> operands, const CustomCall& call) {
  constexpr Op op = Op::CustomCall;
  check_operands(op, operands);
  if (call.target.empty()) fail(op, "expected the name of a target, got none");
  if (!call.opaque.empty() && !call.attributes.empty()) fail(op, "expected FFI attributes or an opaque text, got both");
  if (call.opaque_version < 1 || call.opaque_version > 2) fail(op, fmt::format("expected version 1 or 2 of an opaque text, got {}", call.opaque_version));
  std::vector<std::string> aliases;
  std::set<int64_t> aliased;
  for (auto [result, operand] : call.aliases) {
    if (result < 0 || at(result) >= call.results.size() || operand < 0 || at(operand) >= operands.size() ||
        call.results[at(result)] != operands[at(operand)].type() || !aliased.insert(result).second)
      fail(op, fmt::format(
                   "expected aliases of a result and an operand of one type, each result once, got result {} and operand {}",
                   result, operand));
    aliases.push_back(fmt::format(
        "#stablehlo.output_operand_alias<output_tuple_indices = [{}], operand_index = {}, operand_tuple_indices = []>",
        call.results.size() > 1 ? std::to_string(result) : "", operand));
  }
  std::vector<Attribute> attributes{{"call_target_name", call.target}, {"has_side_effect", call.has_side_effect}};
  if (call.opaque.empty()) {
    attributes.push_back({"api_version", RawAttribute{"4 : i32"}});
    for (const Attribute& a : call.attributes) {
      if (std::holds_alternative<DType>(a.value) || std::holds_alternative<Literal>(a.value) ||
          std::holds_alternative<Sharding>(a.value) || std::holds_alternative<std::vector<Sharding>>(a.value) ||
          std::holds_alternative<std::vector<std::string>>(a.value))
        fail(op,
             fmt::format(
                 "expected FFI attributes that are bool, int64, double, text or a list of numbers, got another kind as '{}'",
                 a.name));
    }
    std::vector<Attribute> sorted = call.attributes;
    std::sort(sorted.begin(), sorted.end(), [](const Attribute& a, const Attribute& b) { return a.name < b.name; });
    attributes.push_back({"backend_config", RawAttribute{dictionary_text(sorted)}});
  } else {
    attributes.push_back({"api_version", RawAttribute{fmt::format("{} : i32", call.opaque_version)}});
    attributes.push_back({"backend_config", call.opaque});
  }
  attributes.push_back({"operand_layouts", RawAttribute{layouts(types_of(operands))}});
  attributes.push_back({"result_layouts", RawAttribute{layouts(call.results)}});
  if (!aliases.empty()) attributes.push_back({"output_operand_aliases", RawAttribute{join(aliases)}});
  return emit(op, {operands.begin(), operands.end()}, call.results, std::move(attributes));
}

// Without layouts: the compiler chooses them.
Value Builder::in_memory(Value x, const std::string& kind) {
  constexpr Op op = Op::CustomCall;
  check_operands(op, {x});
  if (kind != "device" && kind != "pinned_host") fail(op, fmt::format("expected memory \"device\" or \"pinned_host\", got \"{}\"", kind));
  return emit(op, {x}, x.type(),
              {{"call_target_name", std::string("annotate_device_placement")},
               {"has_side_effect", true},
               {"backend_config", std::string()},
               {kFrontendAttributes, RawAttribute{fmt::format("{{_xla_buffer_placement = \"{}\"}}", kind)}}});
}

std::vector<Value> Builder::optimization_barrier(std::span<const Value> xs) {
  check_operands(Op::OptimizationBarrier, xs);
  if (xs.empty()) return {};
  return emit(Op::OptimizationBarrier, {xs.begin(), xs.end()}, types_of(xs));
}

// -- shardings
// ----------------------------------------------------------------------------------------------------------------

Sharding Builder::check_sharding(Op op, const Sharding& sharding, const Type& type) const {
  if (std::string fault = sharding_fault(sharding, graph_->mesh(), type.rank()); !fault.empty()) fail(op, fault);
  return in_mesh_order(sharding, *graph_->mesh());
}

Value Builder::sharding_constraint(Value x, const Sharding& sharding) {
  constexpr Op op = Op::ShardingConstraint;
  check_operands(op, {x});
  return emit(op, {x}, x.type(), {{"sharding", check_sharding(op, sharding, x.type())}});
}

std::vector<Value> Builder::manual_computation(std::span<const Value> operands, std::span<const Sharding> in,
                                               std::span<const Sharding> out, std::vector<std::string> manual_axes,
                                               const Body& body) {
  constexpr Op op = Op::ManualComputation;
  check_operands(op, operands);
  if (in.size() != operands.size())
    fail(op, fmt::format("expected one sharding an operand, got {} for {}", in.size(), operands.size()));
  if (std::string fault = sharding_fault({{}, manual_axes}, graph_->mesh(), 0); !fault.empty()) fail(op, fault);
  const Mesh& mesh = *graph_->mesh();
  manual_axes = in_mesh_order(std::move(manual_axes), mesh);
  auto is_manual = [&](const std::string& axis) {
    return std::find(manual_axes.begin(), manual_axes.end(), axis) != manual_axes.end();
  };

  // By how much the manual axes split each dimension.
  auto factors = [&](const Sharding& sharding) {
    Dims sizes;
    for (const Sharding::Dim& dim : sharding.dims) {
      int64_t size = 1;
      bool free_seen = false;
      for (const std::string& axis : dim.axes) {
        if (!is_manual(axis)) {
          free_seen = true;
        } else if (free_seen) {
          fail(op,
               fmt::format("expected manual axes in front of the others in each dimension, got {}", sharding.to_string()));
        } else {
          size *= axis_size(mesh, axis);
        }
      }
      sizes.push_back(size);
    }
    return sizes;
  };
  std::vector<Sharding> in_shardings, out_shardings;
  std::vector<Type> local;
  for (size_t i = 0; i < operands.size(); ++i) {
    Type type = operands[i].type();
    in_shardings.push_back(check_sharding(op, in[i], type));
    const Dims split = factors(in[i]);
    for (size_t d = 0; d < split.size(); ++d) {
      if (type.dims[d] % split[d])
        fail(op, fmt::format("expected dimension {} of {} to split into {} equal parts, got sharding {}", d,
                             type.to_string(), split[d], in[i].to_string()));
      type.dims[d] /= split[d];
    }
    local.push_back(std::move(type));
  }
  Regions regions(*this);
  std::vector<Type> results = types_of(regions.add(op, local, body).results);
  if (out.size() != results.size())
    fail(op, fmt::format("expected one sharding a result, got {} for {}", out.size(), results.size()));
  for (size_t i = 0; i < results.size(); ++i) {
    out_shardings.push_back(check_sharding(op, out[i], results[i]));
    const Dims split = factors(out[i]);
    for (size_t d = 0; d < split.size(); ++d) results[i].dims[d] *= split[d];
  }
  return emit(op, {operands.begin(), operands.end()}, std::move(results),
              {{"in_shardings", std::move(in_shardings)},
               {"out_shardings", std::move(out_shardings)},
               {"manual_axes", std::move(manual_axes)}},
              regions.release());
}

// -- collectives
// --------------------------------------------------------------------------------------------------------------

int64_t Builder::check_groups(Op op, const std::vector<Dims>& groups) const {
  std::set<int64_t> seen;
  if (groups.empty() || groups[0].empty()) fail(op, "expected at least one group of devices, got none");
  for (const Dims& group : groups) {
    if (group.size() != groups[0].size())
      fail(op, fmt::format("expected groups of one size, got {} and {} devices", groups[0].size(), group.size()));
    for (int64_t id : group)
      if (id < 0 || !seen.insert(id).second)
        fail(op, fmt::format("expected each device in one group, got {} again or below 0", id));
  }
  return static_cast<int64_t>(groups[0].size());
}

std::vector<Attribute> Builder::collective_attributes(const std::vector<Dims>& groups, int64_t channel) const {
  return {{"replica_groups", id_table(groups, static_cast<int64_t>(groups[0].size()))},
          {"channel_handle", RawAttribute{fmt::format("#stablehlo.channel_handle<handle = {}, type = 1>", channel)}}};
}

Value Builder::all_reduce(Value x, Reduction kind, const std::vector<Dims>& groups, int64_t channel) {
  constexpr Op op = Op::AllReduce;
  check_operands(op, {x});
  check_groups(op, groups);
  check_reduction(op, kind, x.dtype());
  std::vector<Attribute> attributes = collective_attributes(groups, channel);
  attributes.push_back({"use_global_device_ids", RawAttribute{"unit"}});
  Regions regions(*this);
  const Type element{x.dtype(), {}};
  regions.add(op, std::array{element, element}, combine_body(kind));
  return emit(op, {x}, std::vector{x.type()}, std::move(attributes), regions.release()).front();
}

Value Builder::all_gather(Value x, int64_t dimension, const std::vector<Dims>& groups, int64_t channel) {
  constexpr Op op = Op::AllGather;
  check_operands(op, {x});
  check_axis(op, "a dimension", dimension, x.rank());
  Type type = x.type();
  type.dims[at(dimension)] *= check_groups(op, groups);
  std::vector<Attribute> attributes = collective_attributes(groups, channel);
  attributes.push_back({"all_gather_dim", dimension});
  attributes.push_back({"use_global_device_ids", RawAttribute{"unit"}});
  return emit(op, {x}, std::move(type), std::move(attributes));
}

Value Builder::reduce_scatter(Value x, Reduction kind, int64_t dimension, const std::vector<Dims>& groups, int64_t channel) {
  constexpr Op op = Op::ReduceScatter;
  check_operands(op, {x});
  check_axis(op, "a dimension", dimension, x.rank());
  check_reduction(op, kind, x.dtype());
  Type type = x.type();
  const int64_t parts = check_groups(op, groups);
  if (type.dims[at(dimension)] % parts)
    fail(op, fmt::format("expected dimension {} of {} to split into {} equal parts", dimension, type.to_string(), parts));
  type.dims[at(dimension)] /= parts;
  std::vector<Attribute> attributes = collective_attributes(groups, channel);
  attributes.push_back({"scatter_dimension", dimension});
  attributes.push_back({"use_global_device_ids", RawAttribute{"unit"}});
  Regions regions(*this);
  const Type element{x.dtype(), {}};
  regions.add(op, std::array{element, element}, combine_body(kind));
  return emit(op, {x}, std::vector{std::move(type)}, std::move(attributes), regions.release()).front();
}

Value Builder::all_to_all(Value x, int64_t split_dimension, int64_t concat_dimension, const std::vector<Dims>& groups,
                          int64_t channel) {
  constexpr Op op = Op::AllToAll;
  check_operands(op, {x});
  check_axis(op, "a split dimension", split_dimension, x.rank());
  check_axis(op, "a concat dimension", concat_dimension, x.rank());
  const int64_t parts = check_groups(op, groups);
  Type type = x.type();
  if (type.dims[at(split_dimension)] % parts)
    fail(op,
         fmt::format("expected dimension {} of {} to split into {} equal parts", split_dimension, type.to_string(), parts));
  type.dims[at(split_dimension)] /= parts;
  type.dims[at(concat_dimension)] *= parts;
  std::vector<Attribute> attributes = collective_attributes(groups, channel);
  attributes.push_back({"split_dimension", split_dimension});
  attributes.push_back({"concat_dimension", concat_dimension});
  attributes.push_back({"split_count", parts});
  return emit(op, {x}, std::move(type), std::move(attributes));
}

Value Builder::collective_permute(Value x, const std::vector<std::array<int64_t, 2>>& source_target, int64_t channel) {
  constexpr Op op = Op::CollectivePermute;
  check_operands(op, {x});
  std::set<int64_t> sources, targets;
  std::vector<Dims> rows;
  for (auto [source, target] : source_target) {
    if (source < 0 || target < 0 || !sources.insert(source).second || !targets.insert(target).second)
      fail(op, fmt::format("expected each device at most once as source and once as target, got {} -> {}", source, target));
    rows.push_back({source, target});
  }
  return emit(op, {x}, x.type(),
              {{"source_target_pairs", id_table(rows, 2)},
               {"channel_handle", RawAttribute{fmt::format("#stablehlo.channel_handle<handle = {}, type = 1>", channel)}}});
}

Value Builder::partition_id() { return emit(Op::PartitionId, {}, Type{DType::U32, {}}); }

}  // namespace flambeau::hlo
