// One boxed kernel for every row of the op table.
//
// A row names a functional overload. Its in-place and out forms are found among the overloads of the same name: those whose arguments
// are the functional ones, with the first written to (add_), or followed by tensors that are written to (add.out). The kernel turns
// the stack into call arguments, lets the engine run or record the call, and puts back what the schema promises.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/MathBitsFallback.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "device/arguments.h"
#include "device/call_arguments.h"
#include "device/device.h"
#include "device/errors.h"
#include "device/fallback.h"
#include "device/indices.h"
#include "device/live_numbers.h"
#include "device/register.h"
#include "device/strides.h"
#include "hlo/builder.h"
#include "ops/kernel_call.h"

namespace flambeau::device {
namespace {

using runtime::CallArgument;
using runtime::Engine;
using runtime::TensorRef;

// ---- the kernel -------------------------------------------------------------------------------------------------------------

// How one overload is served by a row.
struct Overload {
  const ops::Row* row;
  std::vector<ArgumentKind> kinds = {};  // of the arguments that the row's functional form has
  std::vector<size_t> written = {};      // arguments that outputs are written into, in the outputs' order
  size_t functional_arguments = 0;       // the leading ones that are passed on
  bool out_form = false;                 // written tensors take the result's shape
  std::optional<size_t> generator = {}, device = {};
  std::optional<size_t> indices = {};    // a list of index tensors, of whichever device, masks among them
  bool takes_mask = false;               // one that is the only index
  StrideRule strides = {};               // of results that are not written into arguments, or are resized
  bool returns_list = false;
};

// PyTorch's own resolution of a bit, for ops that it lets through with theirs (matrix products).
struct ResolveBits final : at::native::MathOpFallback {
  ResolveBits() : MathOpFallback(c10::DispatchKey::Conjugate, "conjugate") {}
  bool is_bit_set(const at::Tensor& tensor) override { return has_bits(tensor); }
};

std::optional<at::Generator> generator_of(const Overload& overload, const c10::IValue* arguments) {
  if (!overload.generator || arguments[*overload.generator].isNone()) return std::nullopt;
  return arguments[*overload.generator].toGenerator();
}

std::vector<at::Tensor> written_tensors(const Overload& overload, const c10::IValue* arguments) {
  std::vector<at::Tensor> tensors;
  for (size_t i : overload.written) {
    if (arguments[i].isTensorList()) {
      for (const at::Tensor& t : arguments[i].toTensorVector()) tensors.push_back(t);
    } else {
      tensors.push_back(arguments[i].isNone() ? at::Tensor() : arguments[i].toTensor());
    }
  }
  return tensors;
}

// Shapes an out tensor, and refuses what PyTorch refuses. `strides` are those of one that is resized; empty: row-major.
void prepare_target(const Overload& overload, const at::Tensor& target, const hlo::Type& type, const hlo::Dims& strides) {
  if (!is_tpu(target)) refuse_device(target);
  c10::ScalarType result = scalar_type_of(type.dtype);
  if (!c10::canCast(result, target.scalar_type()))
    raise<InvalidArgument>("result type {} can't be cast to the desired output type {}", c10::toString(result),
                           c10::toString(target.scalar_type()));
  if (!overload.out_form && target.is_complex() && is_float(type.dtype))
    raise<InvalidArgument>("In-place {} is not supported for complex tensors.", overload.row->name.substr(6));
  if (!overload.out_form || target.sizes() == at::IntArrayRef(type.dims)) return;
  target.resize_(type.dims);
  if (!strides.empty()) target.unsafeGetTensorImpl()->set_sizes_and_strides(type.dims, strides);
}

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(Overload overload) : overload_(std::move(overload)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    if (std::ranges::any_of(arguments, [](const c10::IValue& value) { return has_bits(value); }))
      return ResolveBits().fallback_impl(op, keys, stack);
    std::optional<std::string> missing;  // what of the op the row lacks
    at_the_edge(
        [&] {
          try {
            run(op, *stack);
          } catch (const NotImplemented& error) {
            missing = error.what();
          } catch (const hlo::BuilderRefusal& error) {  // no words of PyTorch's: the op's function did not think of what it was given
            missing = error.what();
          }
        },
        [&] { return describe(op, stack->data() + (stack->size() - op.schema().arguments().size())); });
    if (missing) run_on_cpu(op, stack, *missing);
  }

 private:
  void run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    size_t count = op.schema().arguments().size();
    c10::IValue* arguments = stack.data() + (stack.size() - count);
    if (overload_.indices) prepare_indices(arguments[0].toTensor(), arguments[*overload_.indices], overload_.takes_mask);
    std::vector<CallArgument> call;
    call.reserve(count);
    for (size_t i = 0; i < overload_.functional_arguments; ++i)
      if (overload_.kinds[i] != ArgumentKind::Placement) call.push_back(to_argument(overload_.kinds[i], arguments[i]));
    mark_numbers(op.schema(), call);

    if (overload_.device && arguments[*overload_.device].isDevice()) check_index(arguments[*overload_.device].toDevice().index());

    std::vector<at::Tensor> written = written_tensors(overload_, arguments);
    std::vector<std::optional<TensorRef>> into = targets(written, call, {arguments, overload_.functional_arguments});
    runtime::RandomSource* random = overload_.row->random ? &random_source(generator_of(overload_, arguments)) : nullptr;
    if (random && Engine::current() && random != &random_source(std::nullopt))
      raise<NotImplemented>("[capture] a generator of its own is not handled within a captured step; use the default one");
    std::vector<Engine::Output> outputs = Engine::get().call(*overload_.row, call, into, random);
    put_results(op, stack, count, outputs, written);
  }

  // Where results go: tensors that the call names, and new ones that are not row-major, which `written` gains.
  std::vector<std::optional<TensorRef>> targets(std::vector<at::Tensor>& written, const std::vector<CallArgument>& call,
                                                std::span<const c10::IValue> arguments) {
    std::vector<std::optional<TensorRef>> into;
    const bool permute = (written.empty() || overload_.out_form) && may_permute(overload_.strides, arguments);
    if (written.empty() && !permute) return into;
    std::vector<std::optional<hlo::Type>> types = Engine::get().infer(*overload_.row, call);
    std::vector<hlo::Dims> strides(types.size());
    if (permute) strides = result_strides(overload_.strides, arguments, types);
    if (written.empty()) {
      for (size_t i = 0; i < types.size(); ++i) written.push_back(strides[i].empty() ? at::Tensor() : make_strided(*types[i], strides[i]));
    }
    for (size_t i = 0; i < written.size(); ++i) {
      bool used = written[i].defined() && i < types.size() && types[i];
      if (used) prepare_target(overload_, written[i], *types[i], strides[i]);
      into.push_back(used ? std::optional(ref_of(written[i])) : std::nullopt);
    }
    return into;
  }

  void put_results(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t count, std::vector<Engine::Output>& outputs,
                   const std::vector<at::Tensor>& written) {
    std::vector<c10::IValue> results;
    auto tensor = [&](size_t i) {
      if (i < written.size() && (written[i].defined() || !overload_.written.empty())) return written[i];
      if (i >= outputs.size() || !outputs[i].type) return at::Tensor();
      return make_tensor(outputs[i].storage, *outputs[i].type);
    };
    if (overload_.returns_list) {
      c10::List<at::Tensor> tensors;
      for (size_t i = 0; i < outputs.size(); ++i) tensors.push_back(tensor(i));
      results.emplace_back(std::move(tensors));
    } else {
      for (size_t i = 0; i < op.schema().returns().size(); ++i) results.emplace_back(tensor(i));
    }
    torch::jit::drop(stack, count);
    for (c10::IValue& result : results) stack.push_back(std::move(result));
  }

  Overload overload_;
};

// ---- finding the forms of a row -------------------------------------------------------------------------------------------------

// Whether `schema` is the in-place or out form of `functional`: the same arguments, some of them written to, or then out tensors. One
// that writes to both does not say in which order, and is left to PyTorch's own composite.
bool is_form_of(const c10::FunctionSchema& schema, const c10::FunctionSchema& functional) {
  const auto& theirs = functional.arguments();
  const auto& ours = schema.arguments();
  if (ours.size() < theirs.size()) return false;
  for (size_t i = 0; i < theirs.size(); ++i)
    if (*ours[i].type() != *theirs[i].type() || ours[i].name() != theirs[i].name()) return false;
  if (ours.size() > theirs.size() && std::any_of(ours.begin(), ours.begin() + std::ssize(theirs), is_written)) return false;
  return std::all_of(ours.begin() + std::ssize(theirs), ours.end(), is_written);
}

std::optional<Overload> overload_of(const ops::Row& row, const c10::FunctionSchema& functional, const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (!is_form_of(schema, functional)) return std::nullopt;
  Overload overload{.row = &row,
                    .kinds = argument_kinds(row, functional),
                    .functional_arguments = functional.arguments().size(),
                    .out_form = schema.arguments().size() > functional.arguments().size(),
                    .takes_mask = row.name.find("index_put") != std::string_view::npos,
                    .strides = stride_rule(op)};
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (is_written(argument)) overload.written.push_back(i);
    const c10::TypePtr type = without_optional(argument.type());
    if (is_generator(argument)) overload.generator = i;
    if (argument.name() == "indices" && type->kind() == c10::TypeKind::ListType) overload.indices = i;
    if (type->kind() == c10::TypeKind::DeviceObjType) overload.device = i;
  }
  overload.returns_list =
      !schema.returns().empty() && schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
  return overload;
}

// Rows that PyTorch reaches through copies of its own, and the one that attention.cc serves.
constexpr std::string_view kNotRegistered[] = {"aten::copy", "aten::_to_copy",
                                               "aten::_scaled_dot_product_fused_attention_overrideable"};

void unsupported(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_on_cpu(op, stack, "it is not implemented for the tpu device yet");
}

// What serves one overload of a row's op; none where the row's function does not say enough for it.
std::optional<Overload> overload_served(const ops::Row& row, const c10::OperatorHandle& functional, const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  const bool is_row = handle.operator_name() == functional.operator_name();
  if (!is_row && std::none_of(schema.arguments().begin(), schema.arguments().end(), is_written)) return std::nullopt;
  // Where one list ends and the next begins is not told by the outputs; the in-place form, the one in use, needs not know.
  if (is_row && schema.returns().size() > 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType) return std::nullopt;
  return overload_of(row, functional.schema(), handle);
}

using OverloadNames = std::multimap<std::string, c10::OperatorName>;  // by the op's name

// Registers a row's op with its in-place and out forms.
void register_row(torch::Library& library, const OverloadNames& overloads, const ops::Row& row) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const std::string_view full = row.name;
  const size_t dot = full.find('.');
  const std::string base(full.substr(0, dot)), overload_name(dot == full.npos ? "" : full.substr(dot + 1));
  const auto functional = dispatcher.findSchema({base, overload_name});
  if (!functional) raise<NotImplemented>("PyTorch {} has no such op", TORCH_VERSION);
  constexpr std::string_view kFunctional = "_functional";  // aten::normal_functional is the twin of aten::normal_
  const std::string in_place = base.ends_with(kFunctional) ? base.substr(0, base.size() - kFunctional.size()) + "_" : base + "_";
  for (const std::string& name : {base, in_place}) {
    auto [begin, end] = overloads.equal_range(name);
    for (auto it = begin; it != end; ++it)
      if (const auto handle = dispatcher.findSchema(it->second))
        if (auto overload = overload_served(row, *functional, *handle))
          library.impl(c10::toString(it->second).c_str(),
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(*overload))));
  }
}

}  // namespace

void register_rows(std::span<const ops::Row> rows) {
  const auto library = [](const char* ns) {  // never removed
    return new torch::Library(torch::Library::IMPL, ns, c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  };
  auto *aten = library("aten"), *own = library("flambeau");
  OverloadNames overloads;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) overloads.emplace(name.name, name);
  for (const ops::Row& row : rows) {
    if (std::find(std::begin(kNotRegistered), std::end(kNotRegistered), row.name) != std::end(kNotRegistered)) continue;
    try {
      register_row(row.schema.empty() ? *aten : *own, overloads, row);
    } catch (const std::exception& error) {  // another version of PyTorch: `import torch` goes on, and the op runs on the CPU
      log_debug("[tpu] the row {} is left out: {}", row.name, first_line(error.what()));
    }
  }
}

void register_table() {
  static auto* fallback = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&unsupported>());
  register_rows(ops::all_rows());
  register_rows(ops::kernel_rows());
}

}  // namespace flambeau::device
