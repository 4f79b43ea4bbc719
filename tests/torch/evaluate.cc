#include "evaluate.h"

#include <optional>
#include <utility>

#include "hlo/graph.h"
#include "ops/check.h"
#include "ops/op.h"
#include "pjrt/pjrt.h"

namespace flambeau::op_test {

namespace {

constexpr std::pair<at::ScalarType, DType> kTypes[] = {
    {at::kBool, DType::Pred},    {at::kByte, DType::U8},         {at::kChar, DType::S8},   {at::kShort, DType::S16},
    {at::kInt, DType::S32},      {at::kLong, DType::S64},        {at::kHalf, DType::F16},  {at::kBFloat16, DType::BF16},
    {at::kFloat, DType::F32},    {at::kDouble, DType::F64},      {at::kComplexFloat, DType::C64},
    {at::kComplexDouble, DType::C128}, {at::kUInt16, DType::U16}, {at::kUInt32, DType::U32}, {at::kUInt64, DType::U64},
};

DType to_ours(at::ScalarType t) {
  for (auto [torch, ours] : kTypes)
    if (torch == t) return ours;
  raise<InvalidArgument>("[op test] no element type for {}", c10::toString(t));
}

at::ScalarType to_torch(DType t) {
  for (auto [torch, ours] : kTypes)
    if (ours == t) return torch;
  raise<InvalidArgument>("[op test] no scalar type for {}", torch_name(t));
}

// A graph that grows by one call after another, with the tensors that its parameters stand for.
class Program {
 public:
  Program() : builder_(graph_) {}

  void add(const Call& call, Outcome& outcome) {
    const ops::Row* row = ops::find_row(call.row);
    Slot slot{&outcome, {}, {}};
    try {
      if (!row) raise<NotImplemented>("no row {}", call.row);
      std::vector<ops::Argument> arguments;
      const auto& schema = call.op.schema().arguments();
      for (size_t i = 0; i < schema.size(); ++i)
        if (!says_where(schema[i])) arguments.push_back(convert(call.arguments[i], *schema[i].real_type(), row->specialise || call.numbers_known));
      ops::Random random;
      if (row->random) random = {parameter(at::scalar_tensor(12345, at::kUInt64)), parameter(at::scalar_tensor(7, at::kUInt64))};
      ops::CheckScope scope;
      slot.outputs = row->lower(builder_, arguments, row->random ? &random : nullptr);
      slot.checks = scope.checks();
    } catch (const Error& error) {
      outcome.raised = true;
      outcome.error = error.what();
      return;
    }
    slots_.push_back(std::move(slot));
  }

  void run(const pjrt::Client& client) {
    std::vector<hlo::Value> results;
    for (const Slot& slot : slots_) {
      for (hlo::Value v : slot.outputs)
        if (v) results.push_back(v);
      for (const auto& check : slot.checks) results.push_back(check.failed);
    }
    if (results.empty()) return;
    graph_.set_results(results);
    hlo::simplify(graph_);
    pjrt::CompileOptions options;
    if (client.platform_name() == "cpu") options.overrides["xla_cpu_enable_fast_min_max"] = false;  // else a NaN may be lost
    auto executable = client.compile(hlo::print(graph_), options);
    std::vector<std::unique_ptr<pjrt::Buffer>> inputs;
    std::vector<const pjrt::Buffer*> arguments;
    for (const at::Tensor& t : tensors_) {
      inputs.push_back(client.upload({t.data_ptr(), to_ours(t.scalar_type()), t.sizes()}, client.addressable_devices()[0]));
      arguments.push_back(inputs.back().get());
    }
    auto outputs = executable->execute(arguments);
    size_t next = 0;
    auto download = [&]() {
      const pjrt::Buffer& buffer = *outputs[next++];
      at::Tensor t = at::empty(at::IntArrayRef(buffer.dims().data(), buffer.dims().size()), to_torch(buffer.dtype()));
      if (t.numel()) buffer.to_host(t.data_ptr());
      return t;
    };
    for (const Slot& slot : slots_) {
      for (hlo::Value v : slot.outputs) slot.outcome->outputs.push_back(v ? download() : at::Tensor());
      for (const auto& check : slot.checks)
        if (download().item<bool>()) {
          slot.outcome->raised = true;
          slot.outcome->error = check.message;
        }
    }
  }

 private:
  struct Slot {
    Outcome* outcome;
    std::vector<hlo::Value> outputs;
    std::vector<ops::Check> checks;
  };

  hlo::Value parameter(const at::Tensor& t) {
    tensors_.push_back(t.contiguous());
    auto sizes = t.sizes();
    return graph_.add_parameter({to_ours(t.scalar_type()), {sizes.begin(), sizes.end()}});
  }

  ops::Operand operand(const at::Tensor& t) { return {parameter(t), t.unsafeGetTensorImpl()->is_wrapped_number()}; }

  ops::Scalar scalar(const c10::Scalar& s, bool known) {
    if (!known) return {{}, parameter(at::scalar_tensor(s, s.type()))};
    if (s.isBoolean()) return {ops::Number{s.to<bool>()}, {}};
    if (s.isIntegral(false)) return {ops::Number{s.to<int64_t>()}, {}};
    if (s.isComplex()) {
      auto z = s.to<c10::complex<double>>();
      return {ops::Number{std::complex<double>(z.real(), z.imag())}, {}};
    }
    return {ops::Number{s.to<double>()}, {}};
  }

  ops::Argument convert(const c10::IValue& value, const c10::Type& type, bool known) {
    if (value.isNone()) return std::monostate{};
    switch (type.kind()) {
      case c10::TypeKind::OptionalType: return convert(value, *type.containedType(0), known);
      case c10::TypeKind::TensorType:
        if (!value.toTensor().defined()) return std::monostate{};
        return operand(value.toTensor());
      case c10::TypeKind::NumberType: return scalar(value.toScalar(), known);
      case c10::TypeKind::ScalarTypeType: return to_ours(value.toScalarType());
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType: return value.toInt();
      case c10::TypeKind::FloatType: return value.toDouble();
      case c10::TypeKind::BoolType: return value.toBool();
      case c10::TypeKind::StringType: return value.toStringRef();
      case c10::TypeKind::ListType: return convert_list(value, *type.containedType(0));
      default: raise<InvalidArgument>("[op test] no argument of type {}", type.str());
    }
  }

  ops::Argument convert_list(const c10::IValue& value, const c10::Type& element) {
    switch (element.kind()) {
      case c10::TypeKind::TensorType:
      case c10::TypeKind::OptionalType: {
        std::vector<std::optional<ops::Operand>> operands;
        for (const c10::IValue& item : value.toList())
          operands.push_back(item.isNone() || !item.toTensor().defined() ? std::nullopt : std::optional(operand(item.toTensor())));
        return operands;
      }
      case c10::TypeKind::BoolType: {
        ops::Dims flags;
        for (const c10::IValue& item : value.toList()) flags.push_back(item.toBool());
        return flags;
      }
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType: return ops::Dims(value.toIntVector());
      default: raise<InvalidArgument>("[op test] no list of {}", element.str());
    }
  }

  hlo::Graph graph_;
  hlo::Builder builder_;
  std::vector<at::Tensor> tensors_;
  std::vector<Slot> slots_;
};

const pjrt::Client& client() {
  static const auto instance = pjrt::Client::create(pjrt::Plugin::load(pjrt::find_plugin()));
  return *instance;
}

}  // namespace

bool says_where(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
  switch (type->kind()) {
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::GeneratorType: return true;
    default: return argument.name() == "pin_memory";
  }
}

std::vector<Outcome> evaluate(std::span<const Call> calls) {
  std::vector<Outcome> outcomes(calls.size());
  Program program;
  for (size_t i = 0; i < calls.size(); ++i) program.add(calls[i], outcomes[i]);
  program.run(client());
  return outcomes;
}

}  // namespace flambeau::op_test
