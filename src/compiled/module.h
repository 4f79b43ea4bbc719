// A program as a compiler left it: XLA's HLO, read back from a serialized xla.HloModuleProto.
//
// `hlo::Graph` is what we ask for; this is what we got: partitioned into one device's part, fused, scheduled. The reader
// keeps what analyses need (analysis.h) and skips the rest.
//
// The bytes may be anything. parse_module raises InvalidArgument for what is not such a module, and gives guarantees
// that let analyses go without checks: operands come before their users, every index is in range, computations do not call
// themselves, sizes of shapes fit 63 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flambeau::compiled {

// An array, or a tuple of shapes (then `type` is "tuple"). Other types without elements: "token", "opaque".
struct Shape {
  std::string_view type = "token";  // HLO's spelling: pred, s32, bf16, f32, f8e4m3fn
  std::vector<int64_t> dims;
  std::vector<Shape> parts;  // of a tuple
  int64_t laid_out = 0;      // elements that an array takes in memory: its layout may pad dimensions to whole tiles
  int64_t memory_space = 0;  // 0: the device's large memory (HBM); others are on the chip, or the host's

  bool is_tuple() const { return type == "tuple"; }
  int64_t elements() const;        // of an array; 0 for others
  int64_t bytes() const;           // of the elements, all parts together
  int64_t laid_out_bytes() const;  // as it lies in memory, all parts together
  int64_t hbm_bytes() const;       // the same, of the parts that lie in HBM
};

// The devices that take part in a collective: `count` groups of `size`. Zeros: not said, which means all in one.
struct ReplicaGroups {
  int64_t count = 0, size = 0;
  // Group after group, device k is the k-th of 0, 1, 2, ... laid out as `dims`, whose dimensions are then taken in `order`;
  // where `ids` are given, the k-th stands for ids[k]. Without dims, ids are the devices.
  std::vector<int64_t> dims, order, ids;

  // All devices, group after group. None where the fields contradict each other, or groups differ in size.
  std::optional<std::vector<int64_t>> devices() const;
};

using SourceTargetPairs = std::vector<std::pair<int64_t, int64_t>>;

struct WindowDim {
  int64_t size = 1, stride = 1, padding_low = 0, padding_high = 0, window_dilation = 1, base_dilation = 1;
};

struct ConvolutionDims {
  int64_t input_batch = 0, kernel_input_feature = 0, output_feature = 0, batch_groups = 1;
  std::vector<int64_t> input_spatial, output_spatial;
  std::vector<WindowDim> window;
};

// What a pair of "send" and "recv" does between slices, which TPU's runtime carries over the data-centre network.
struct SliceTransfer {
  std::string kind;        // "ALL_REDUCE"; empty: the instruction is no such transfer
  std::string target;      // "{1,2}x{0:3}": slices, counted from 1, and devices of each
  std::string rendezvous;  // the same of both
};

struct Instruction {
  std::string name, opcode;
  Shape shape;
  std::vector<int> operands;  // indices into the computation's instructions, all smaller than this one's
  std::vector<int> called;    // indices into the module's computations; of a while: body, condition
  std::string op_name;        // of the metadata: the operation it came from
  std::string backend_config, custom_call_target, comparison;  // "LT", "NE", ...
  int64_t channel = 0;                                         // of a collective; 0: none
  int64_t parameter_number = 0, tuple_index = 0;
  std::optional<int64_t> integer;         // of a constant that is one integer of 32 or 64 bits
  std::vector<int64_t> dot_contracting;  // dimensions of a dot's left operand
  std::optional<ConvolutionDims> convolution;
  ReplicaGroups groups;
  SourceTargetPairs source_target_pairs;  // of a collective-permute
  SliceTransfer transfer;                 // of a send or recv
};

struct Computation {
  std::string name;
  std::vector<Instruction> instructions;
  int root = 0;
  std::vector<int> schedule;  // indices of instructions in the order in which they run; empty: not said

  const Instruction& root_instruction() const { return instructions[static_cast<size_t>(root)]; }
};

struct Module {
  std::string name;
  std::vector<Computation> computations;
  int entry = 0;
  std::vector<int64_t> aliased_parameters;  // numbers of the entry's parameters whose memory an output takes over

  const Computation& entry_computation() const { return computations[static_cast<size_t>(entry)]; }
};

// Of a serialized xla.HloModuleProto (Executable::optimized_hlo, Topology::first_phase).
Module parse_module(std::string_view serialized);

}  // namespace flambeau::compiled
