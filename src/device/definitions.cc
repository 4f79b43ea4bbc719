// Defines ops of our own: a row's schema, and the shapes of what it gives. As elsewhere the lowering says these: it runs in a graph that is
// thrown away. Fake tensors ask for them too, when PyTorch traces.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "device/call_arguments.h"
#include "device/device.h"
#include "device/errors.h"
#include "device/register.h"
#include "runtime/trace.h"

namespace flambeau::device {
namespace {

class Shapes final : public c10::OperatorKernel {
 public:
  explicit Shapes(const ops::Row& row) : row_(row) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    const size_t count = op.schema().arguments().size();
    const c10::IValue* arguments = stack->data() + (stack->size() - count);
    const auto types = at_the_edge([&] { return types_of(op.schema(), arguments); }, [&] { return describe(op, arguments); });
    std::vector<at::Tensor> results;
    for (const std::optional<hlo::Type>& type : types)
      results.push_back(type ? at::empty(type->dims, at::device(at::kMeta).dtype(scalar_type_of(type->dtype))) : at::Tensor());
    torch::jit::drop(*stack, count);
    if (op.schema().returns()[0].type()->kind() == c10::TypeKind::ListType)
      stack->emplace_back(std::move(results));
    else
      for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  }

 private:
  std::vector<std::optional<hlo::Type>> types_of(const c10::FunctionSchema& schema, const c10::IValue* arguments) const {
    std::vector<runtime::CallArgument> call;
    for (const ArgumentKind kind : argument_kinds(row_, schema)) call.push_back(to_argument(kind, *arguments++, Asked::Shapes));
    runtime::Trace trace(runtime::TraceKind::Strict);
    return trace.infer(row_, call);
  }

  const ops::Row& row_;
};

}  // namespace

void define_rows(std::span<const ops::Row> rows) {
  static auto* definitions = new torch::Library(torch::Library::FRAGMENT, "flambeau", std::nullopt, __FILE__, __LINE__);
  static auto* shapes = new torch::Library(torch::Library::IMPL, "flambeau", c10::DispatchKey::Meta, __FILE__, __LINE__);
  for (const ops::Row& row : rows) {
    if (row.schema.empty()) continue;
    definitions->def((std::string(row.name) + std::string(row.schema)).c_str(), {at::Tag::pt2_compliant_tag});
    shapes->impl(std::string(row.name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Shapes>(row)));
  }
}

}  // namespace flambeau::device
