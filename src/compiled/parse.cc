// parse_module: instructions, computations and the module, whose references are checked and become indices.
#include <limits>
#include <optional>
#include <unordered_map>

#include "compiled/fields.h"

namespace flambeau::compiled {
namespace {

using Ids = std::vector<int64_t>;
constexpr size_t kMostConfigBytes = size_t{1} << 28;  // of all instructions

using IndexOf = std::unordered_map<int64_t, int>;

// An instruction with references that are ids still.
struct RawInstruction {
  Instruction instruction;
  int64_t id = 0;
  std::optional<int64_t> config;  // its place among the module's; none: it has its own, or none
  Ids operands, called;
};

struct RawComputation {
  Computation computation;
  int64_t id = 0, root = 0;
  std::vector<Ids> called;  // of each instruction
  std::vector<std::optional<int64_t>> configs;  // the same
  IndexOf instructions;
};

std::pair<int64_t, int64_t> parse_pair(std::string_view message) {
  std::pair<int64_t, int64_t> pair;
  for_each_field(message, "SourceTarget", [&](const ProtoReader& field) {
    if (field.field() == 1) pair.first = static_cast<int64_t>(field.integer());
    if (field.field() == 2) pair.second = static_cast<int64_t>(field.integer());
  });
  return pair;
}

// FrontendAttributes {1 entry {1 key, 2 value}}
SliceTransfer parse_transfer(std::string_view message) {
  SliceTransfer transfer;
  for_each_field(message, "FrontendAttributes", [&](const ProtoReader& entry) {
    if (entry.field() != 1) return;
    const std::string_view key = proto_field(entry.bytes(), 1), value = proto_field(entry.bytes(), 2);
    if (key == "_xla_megascale_transfer_type") transfer.kind = value;
    if (key == "_xla_megascale_target") transfer.target = value;
    if (key == "_xla_host_transfer_rendezvous") transfer.rendezvous = value;
  });
  return transfer;
}

// A configuration that several instructions share: {2 its place among the module's}.
std::optional<int64_t> parse_config_place(std::string_view message) {
  std::optional<int64_t> place;
  for_each_field(message, "HloInstructionProto.backend_config", [&](const ProtoReader& field) {
    if (field.field() == 2) place = static_cast<int64_t>(field.integer());
  });
  return place;
}

RawInstruction parse_instruction(std::string_view message) {
  RawInstruction raw;
  Instruction& i = raw.instruction;
  ConvolutionDims convolution;
  bool is_convolution = false;
  for_each_field(message, "HloInstructionProto", [&](const ProtoReader& field) {
    const auto integer = static_cast<int64_t>(field.integer());
    switch (field.field()) {
      case 1: i.name = field.bytes(); break;
      case 2: i.opcode = field.bytes(); break;
      case 3: i.shape = parse_shape(field.bytes()); break;
      case 7: i.op_name = proto_field(field.bytes(), 2); break;
      case 8: i.integer = parse_integer_literal(field.bytes()); break;
      case 9: i.parameter_number = integer; break;
      case 13: i.tuple_index = integer; break;
      case 15: convolution.window = parse_window(field.bytes()); break;
      case 16:
        parse_convolution_dims(field.bytes(), convolution);
        is_convolution = true;
        break;
      case 26: i.channel = std::max<int64_t>(integer, 0); break;
      case 28: i.custom_call_target = field.bytes(); break;
      case 30: i.dot_contracting = parse_dot_contracting(field.bytes()); break;
      case 35: raw.id = integer; break;
      case 36: take_integers(field, raw.operands); break;
      case 38: take_integers(field, raw.called); break;
      case 43: i.backend_config = field.bytes(); break;
      case 49: add_replica_group(field.bytes(), i.groups); break;
      case 52: i.source_target_pairs.push_back(parse_pair(field.bytes())); break;
      case 58: convolution.batch_groups = std::max<int64_t>(integer, 1); break;
      case 63: i.comparison = field.bytes(); break;
      case 68: i.transfer = parse_transfer(field.bytes()); break;
      case 87: i.groups = parse_collective_device_list(field.bytes()); break;
      case 92: i.groups = parse_iota_replica_groups(field.bytes()); break;
      case 93: i.groups = parse_mesh_axes_replica_groups(field.bytes()); break;
      case 99: raw.config = parse_config_place(field.bytes()); break;
      default: break;
    }
  });
  if (i.groups.count < 0 || i.groups.size < 0)
    raise<InvalidArgument>("[compiled.parse] {}: expected groups of devices, got {} of {}", i.name, i.groups.count,
                           i.groups.size);
  if (is_convolution) i.convolution = std::move(convolution);
  return raw;
}

int index_of(const IndexOf& indices, int64_t id, std::string_view what, std::string_view of) {
  const auto found = indices.find(id);
  if (found == indices.end()) raise<InvalidArgument>("[compiled.parse] {}: expected {}, got the unknown id {}", of, what, id);
  return found->second;
}

int next_index(size_t size) {
  if (size >= static_cast<size_t>(std::numeric_limits<int>::max()))
    raise<InvalidArgument>("[compiled.parse] the module is too large");
  return static_cast<int>(size);
}

void add_instruction(RawComputation& to, RawInstruction raw) {
  Computation& computation = to.computation;
  Instruction& i = raw.instruction;
  for (const int64_t id : raw.operands)
    i.operands.push_back(index_of(to.instructions, id, "operands that come before their user", i.name));
  if (!to.instructions.emplace(raw.id, next_index(computation.instructions.size())).second)
    raise<InvalidArgument>("[compiled.parse] {}: expected ids that are unique, got {} again", i.name, raw.id);
  to.called.push_back(std::move(raw.called));
  to.configs.push_back(raw.config);
  computation.instructions.push_back(std::move(i));
}

RawComputation parse_computation(std::string_view message) {
  RawComputation raw;
  for_each_field(message, "HloComputationProto", [&](const ProtoReader& field) {
    switch (field.field()) {
      case 1: raw.computation.name = field.bytes(); break;
      case 2: add_instruction(raw, parse_instruction(field.bytes())); break;
      case 5: raw.id = static_cast<int64_t>(field.integer()); break;
      case 6: raw.root = static_cast<int64_t>(field.integer()); break;
      default: break;
    }
  });
  raw.computation.root = index_of(raw.instructions, raw.root, "a root", raw.computation.name);
  return raw;
}

// HloScheduleProto {1 entry {1 computation's id, 2 {1 instructions' ids}}}
void parse_schedule(std::string_view message, std::vector<RawComputation>& computations, const IndexOf& indices) {
  for_each_field(message, "HloScheduleProto", [&](const ProtoReader& entry) {
    if (entry.field() != 1) return;
    int64_t id = 0;
    Ids order;
    for_each_field(entry.bytes(), "HloScheduleProto.SequencesEntry", [&](const ProtoReader& field) {
      if (field.field() == 1) id = static_cast<int64_t>(field.integer());
      if (field.field() != 2) return;
      for_each_field(field.bytes(), "InstructionSequence", [&](const ProtoReader& ids) {
        if (ids.field() == 1) take_integers(ids, order);
      });
    });
    RawComputation& raw =
        computations[static_cast<size_t>(index_of(indices, id, "the schedule of a computation", "schedule"))];
    raw.computation.schedule.clear();
    for (const int64_t instruction : order)
      raw.computation.schedule.push_back(
          index_of(raw.instructions, instruction, "a schedule of its instructions", raw.computation.name));
  });
}

// HloInputOutputAliasProto {1 entry {2 parameter's number}}
Ids parse_aliases(std::string_view message) {
  Ids parameters;
  for_each_field(message, "HloInputOutputAliasProto", [&](const ProtoReader& entry) {
    if (entry.field() != 1) return;
    int64_t parameter = 0;
    for_each_field(entry.bytes(), "AliasEntryProto", [&](const ProtoReader& field) {
      if (field.field() == 2) parameter = static_cast<int64_t>(field.integer());
    });
    parameters.push_back(parameter);
  });
  return parameters;
}

// Gives an instruction its configuration of those that are shared; `bytes` counts what has been given.
void take_config(Instruction& i, int64_t place, const std::vector<std::string_view>& configs, size_t& bytes) {
  if (place < 0 || static_cast<size_t>(place) >= configs.size())
    raise<InvalidArgument>("[compiled.parse] {}: expected one of the module's {} configurations, got {}", i.name, configs.size(), place);
  i.backend_config = configs[static_cast<size_t>(place)];
  bytes += i.backend_config.size();
  if (bytes > kMostConfigBytes) raise<InvalidArgument>("[compiled.parse] the configurations of instructions are too large");
}

// Raises when a computation calls itself, however far around.
void check_calls(const std::vector<Computation>& computations) {
  enum class State { Unseen, Open, Done };
  std::vector<State> states(computations.size(), State::Unseen);
  std::vector<std::pair<int, bool>> work;  // a computation, and whether all that it calls is done
  for (int start = 0; start < static_cast<int>(computations.size()); ++start) {
    work.emplace_back(start, false);
    while (!work.empty()) {
      const auto [at, finished] = work.back();
      work.pop_back();
      State& state = states[static_cast<size_t>(at)];
      const Computation& computation = computations[static_cast<size_t>(at)];
      if (finished) {
        state = State::Done;
        continue;
      }
      if (state == State::Open) raise<InvalidArgument>("[compiled.parse] the computation {} calls itself", computation.name);
      if (state == State::Done) continue;
      state = State::Open;
      work.emplace_back(at, true);
      for (const Instruction& i : computation.instructions) {
        for (const int callee : i.called) {
          if (states[static_cast<size_t>(callee)] != State::Done) work.emplace_back(callee, false);
        }
      }
    }
  }
}

}  // namespace

Module parse_module(std::string_view serialized) {
  Module module;
  std::vector<RawComputation> raw;
  IndexOf indices;
  int64_t entry = 0;
  std::string_view schedule;
  std::vector<std::string_view> configs;
  for_each_field(serialized, "HloModuleProto", [&](const ProtoReader& field) {
    switch (field.field()) {
      case 1: module.name = field.bytes(); break;
      case 3:
        raw.push_back(parse_computation(field.bytes()));
        if (!indices.emplace(raw.back().id, next_index(raw.size() - 1)).second)
          raise<InvalidArgument>("[compiled.parse] expected computations with ids of their own, got {} again", raw.back().id);
        break;
      case 6: entry = static_cast<int64_t>(field.integer()); break;
      case 7: schedule = field.bytes(); break;
      case 8: module.aliased_parameters = parse_aliases(field.bytes()); break;
      case 22: configs.push_back(field.bytes()); break;
      default: break;
    }
  });
  module.entry = index_of(indices, entry, "an entry computation", module.name);
  parse_schedule(schedule, raw, indices);
  size_t config_bytes = 0;
  for (RawComputation& r : raw) {
    for (size_t i = 0; i < r.called.size(); ++i) {
      Instruction& instruction = r.computation.instructions[i];
      if (r.configs[i]) take_config(instruction, *r.configs[i], configs, config_bytes);
      for (const int64_t id : r.called[i])
        instruction.called.push_back(index_of(indices, id, "a computation to call", instruction.name));
    }
    module.computations.push_back(std::move(r.computation));
  }
  check_calls(module.computations);
  return module;
}

}  // namespace flambeau::compiled
