// A program as a typed graph of StableHLO operations.
//
// A Graph owns nodes in the order in which they were built, which is a topological order. A Value is a handle to one
// result of one node (or to a parameter of the graph or of a region) and stays valid as long as its Graph, also through
// simplify(). Nodes are added through hlo::Builder (builder.h), which infers and checks types; nothing else makes them.
// Not thread-safe: one thread builds a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace flambeau::hlo {

using Dims = std::vector<int64_t>;

struct Type {
  DType dtype = DType::F32;
  Dims dims;

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t elements() const;
  int64_t bytes() const { return elements() * byte_size(dtype); }
  std::string to_string() const;  // tensor<2x3xf32>
  friend bool operator==(const Type&, const Type&) = default;
};

class Graph;

class Value {
 public:
  Value() = default;  // no value: an output that an op does not give
  explicit operator bool() const { return graph_ != nullptr; }
  const Type& type() const;
  DType dtype() const { return type().dtype; }
  const Dims& dims() const { return type().dims; }
  int64_t dim(int64_t i) const { return type().dims[static_cast<size_t>(i)]; }
  int64_t rank() const { return type().rank(); }
  int64_t elements() const { return type().elements(); }
  Graph* graph() const { return graph_; }
  uint32_t id() const { return id_; }
  friend bool operator==(const Value&, const Value&) = default;

 private:
  friend class Graph;
  Value(Graph* graph, uint32_t id) : graph_(graph), id_(id) {}
  Graph* graph_ = nullptr;
  uint32_t id_ = 0;
};

// ---- shardings (Shardy) -------------------------------------------------------------------------------------------------

struct MeshAxis {
  std::string name;
  int64_t size;
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// The mesh of a module, printed as `sdy.mesh @mesh = <["shard"=4, "tensor"=2]>`.
struct Mesh {
  std::vector<MeshAxis> axes;
  int64_t size() const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

// For each dimension the mesh axes that split it, major first; none: not split. `open` lets the partitioner split further.
struct Sharding {
  struct Dim {
    std::vector<std::string> axes = {};
    bool open = false;
    friend bool operator==(const Dim&, const Dim&) = default;
  };
  std::vector<Dim> dims = {};
  std::vector<std::string> replicated = {};  // axes that must not split anything
  std::string to_string() const;        // <@mesh, [{"shard"}, {}]>
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

// ---- attributes -----------------------------------------------------------------------------------------------------------

// Text printed as it stands: enums and structured attributes such as #stablehlo.gather<...>.
struct RawAttribute {
  std::string text;
  friend bool operator==(const RawAttribute&, const RawAttribute&) = default;
};
// A constant's elements: dense row-major host bytes of the type, or one element that stands for all.
struct Literal {
  Type type;
  std::string bytes;
  bool is_splat() const { return static_cast<int64_t>(bytes.size()) == byte_size(type.dtype) && type.elements() != 1; }
  friend bool operator==(const Literal&, const Literal&) = default;
};
using AttributeValue =
    std::variant<bool, int64_t, double, std::string, DType, Dims, std::vector<bool>, RawAttribute, Literal, Sharding,
                 std::vector<Sharding>, std::vector<std::string>>;
struct Attribute {
  std::string_view name;  // a string literal
  AttributeValue value;
  friend bool operator==(const Attribute&, const Attribute&) = default;
};
// The name of an attribute that is no property of the op but a word to the compiler; a node's last.
inline constexpr std::string_view kFrontendAttributes = "frontend_attributes";

// ---- nodes ------------------------------------------------------------------------------------------------------------------

// One enumerator an operation; op_name() gives "stablehlo.add" and so on.
enum class Op : uint8_t {
  // element-wise, one operand
  Abs, Cbrt, Ceil, CountLeadingZeros, Cosine, Exponential, ExponentialMinusOne, Floor, Imag, IsFinite, Log, LogPlusOne,
  Logistic, Negate, Not, PopulationCount, Real, RoundNearestAfz, RoundNearestEven, Rsqrt, Sign, Sine, Sqrt, Tan, Tanh,
  Convert, BitcastConvert,
  // element-wise, two or three operands
  Add, And, Atan2, Complex, Divide, Maximum, Minimum, Multiply, Or, Power, Remainder, ShiftLeft, ShiftRightArithmetic,
  ShiftRightLogical, Subtract, Xor, Compare, Select, Clamp,
  // data movement
  Constant, Iota, BroadcastInDim, Reshape, Transpose, Slice, DynamicSlice, DynamicUpdateSlice, Pad, Concatenate, Reverse,
  Gather, Scatter, Sort,
  // contractions and reductions
  DotGeneral, Convolution, Reduce, ReduceWindow, SelectAndScatter, Cholesky, TriangularSolve, Fft,
  // control and calls
  While, Case, If, CustomCall, OptimizationBarrier, Return,
  // partitioning
  ShardingConstraint, ManualComputation, AllReduce, AllGather, ReduceScatter, AllToAll, CollectivePermute, PartitionId,
};
std::string_view op_name(Op op);

struct Block;

struct Node {
  Op op;
  std::vector<Value> operands;
  std::vector<Value> results;
  std::vector<Attribute> attributes;
  std::vector<std::unique_ptr<Block>> regions;
  std::string site;  // "aten::add (train.py:12)": printed as loc(...), shown in profiles; may be empty

  const AttributeValue* find(std::string_view name) const;
};

// The body of a graph or of a region: its parameters, its nodes in order, the values it yields. Regions may use values of
// the blocks around them (loop invariants need not be carried).
struct Block {
  std::vector<Value> parameters;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Value> results;
  uint32_t id = 0;  // within the graph; 0 is the graph's own body
};

// What is said about one parameter or result of the program.
struct Signature {
  std::optional<Sharding> sharding = {};
  std::optional<int64_t> aliasing_output = {};  // parameters: this output takes over the buffer (tf.aliasing_output)
  bool donor = false;                      // parameters: XLA may reuse the buffer (jax.buffer_donor)
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Value add_parameter(Type type, Signature signature = {});
  void set_results(std::vector<Value> results, std::vector<Signature> signatures = {});
  void set_mesh(Mesh mesh) { mesh_ = std::move(mesh); }
  Signature& parameter_signature(size_t i) { return parameter_signatures_[i]; }
  const Signature& parameter_signature(size_t i) const { return parameter_signatures_[i]; }
  const Signature& result_signature(size_t i) const { return result_signatures_[i]; }

  const std::vector<Value>& parameters() const { return body_.parameters; }
  const std::vector<Value>& results() const { return body_.results; }
  const std::optional<Mesh>& mesh() const { return mesh_; }
  Block& body() { return body_; }
  const Block& body() const { return body_; }
  size_t node_count() const;  // regions included

  // The node that defines a value; null for parameters of the graph and of regions.
  const Node* definition(Value value) const { return values_[value.id()].definition; }

  // For the builder and the passes.
  Value new_value(Type type, Node* definition, uint32_t block = 0);
  const Type& type(uint32_t id) const { return values_[id].type; }
  size_t value_count() const { return values_.size(); }
  std::unique_ptr<Block> new_block();
  // What stands for a value after simplify(): itself, or the equal value that replaced it.
  Value resolve(Value value) const;
  void replace(Value value, Value replacement) { values_[value.id()].replacement = replacement.id(); }
  // The block that defines a value; kNoBlock when its node has been removed.
  static constexpr uint32_t kNoBlock = UINT32_MAX;
  uint32_t block_of(Value value) const { return values_[value.id()].block; }
  // Marks what a removed node or block defined: values that no longer exist.
  void retire(const Node& node);
  void retire(const Block& block);

 private:
  struct Slot {
    Type type;
    Node* definition;
    uint32_t block;
    uint32_t replacement;  // the value's own id unless replaced
  };
  std::deque<Slot> values_;  // references to types stay valid while it grows
  Block body_;
  std::vector<Signature> parameter_signatures_, result_signatures_;
  std::optional<Mesh> mesh_;
  uint32_t block_count_ = 1;
};

inline const Type& Value::type() const { return graph_->type(id_); }

// ---- passes -----------------------------------------------------------------------------------------------------------------

// Removes what has no effect on the results, merges equal nodes, folds small integer constants (shapes, indices) and drops no-ops:
// conversions to the same type, reshapes and transposes that do nothing or follow each other, slices of everything, broadcasts of
// broadcasts, x+0, x*1, select of a constant. Never changes a float's bits. Parameters and results keep their number and order.
void simplify(Graph& graph);

// A hash of structure, types, attributes, signatures and mesh; sites do not count. Equal graphs hash alike in every process.
uint64_t structural_hash(const Graph& graph);

// StableHLO text in generic form that StableHLO 1.13 and newer parse. A pure function of the graph.
struct PrintOptions {
  std::string_view module_name = "flambeau";
  bool sites = false;  // print loc(...)
};
std::string print(const Graph& graph, const PrintOptions& options = {});

}  // namespace flambeau::hlo
