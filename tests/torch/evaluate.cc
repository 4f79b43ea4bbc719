#include "evaluate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "device/device.h"
#include "device/fallback.h"
#include "runtime/program_cache.h"
#include "runtime/recording.h"
#include "runtime/step_program.h"

namespace flambeau::op_test {

namespace {

using runtime::Engine;
using Arguments = std::vector<c10::IValue>;

class Environment : public testing::Environment {
 public:
  void SetUp() override {
    device::initialize({}, true);
    // Half of the time of these tests is LLVM's; what XLA makes of an op is the same. Python's tests run what users run.
    Engine::get().programs().set_compile_options({{"xla_backend_optimization_level", int64_t{0}}});
  }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

// Copies of tensors on a device, with their strides; views of one storage become views of one copy.
class Copies {
 public:
  explicit Copies(c10::Device device, bool exactly = false) : device_(device), exactly_(exactly) {}

  at::Tensor operator()(const at::Tensor& t) {
    if (!t.defined()) return t;
    auto [it, is_new] = bases_.try_emplace(t.storage().unsafeGetStorageImpl());
    if (is_new) {
      at::ScalarType dtype = exactly_ && is_narrow(t) ? at::kDouble : t.scalar_type();
      it->second = (is_whole(t) ? t : storage_of(t)).to(device_, dtype, /*non_blocking=*/false, /*copy=*/true);
    }
    return is_whole(t) ? it->second.view(t.sizes()) : it->second.as_strided(t.sizes(), t.strides(), t.storage_offset());
  }

  c10::IValue operator()(const c10::IValue& value) {
    if (value.isTensor()) return (*this)(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back((*this)(t));
      return list;
    }
    if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) list.push_back(item.isNone() ? std::nullopt : std::optional((*this)(item.toTensor())));
      return list;
    }
    return value;
  }

 private:
  static bool is_whole(const at::Tensor& t) { return t.is_contiguous() && t.storage_offset() == 0 && t.nbytes() == t.storage().nbytes(); }
  static at::Tensor storage_of(const at::Tensor& t) {
    return at::empty({0}, t.options()).set_(t.storage(), 0, {static_cast<int64_t>(t.storage().nbytes() / t.itemsize())}, {1});
  }

  c10::Device device_;
  bool exactly_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> bases_;
};

c10::TypeKind kind_of(const c10::Argument& argument) {
  auto type = argument.real_type();
  return type->kind() == c10::TypeKind::OptionalType ? type->containedType(0)->kind() : type->kind();
}

Arguments copied(const Call& call, Copies& copies, c10::Device device) {
  Arguments arguments;
  const auto& schema = call.op.schema().arguments();
  for (size_t i = 0; i < schema.size(); ++i) {
    bool stays = std::ranges::count(call.on_host, i) > 0;
    if (kind_of(schema[i]) == c10::TypeKind::DeviceObjType) arguments.emplace_back(device);
    else arguments.push_back(stays ? call.arguments[i] : copies(call.arguments[i]));
  }
  return arguments;
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }
bool writes(const c10::OperatorHandle& op) { return std::ranges::any_of(op.schema().arguments(), is_written); }

void flatten(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) out.push_back(value.toTensor());
  else if (value.isInt() || value.isSymInt()) out.emplace_back();
  else if (value.isList())
    for (const c10::IValue& item : value.toList()) flatten(item, out);
}

// Calls f; what it raises goes into the outcome.
template <class F>
void guarded(Outcome& outcome, F f) {
  auto fail = [&](std::string_view kind, const std::string& text) {
    outcome.raised = true;
    outcome.kind = kind;
    outcome.error = text.substr(0, text.find('\n'));
    outcome.outputs.clear();
  };
  try {
    f();
  } catch (const c10::NotImplementedError& error) {
    fail("NotImplementedError", error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    fail("IndexError", error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    fail("ValueError", error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    fail("TypeError", error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail("RuntimeError", error.what());
  }
}

// What the op returns, then what it writes besides.
std::vector<at::Tensor> call_boxed(const c10::OperatorHandle& op, Arguments arguments) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> outputs, written;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (is_written(op.schema().arguments()[i])) flatten(arguments[i], written);
  op.callBoxed(&arguments);
  for (const c10::IValue& v : arguments) flatten(v, outputs);
  for (const at::Tensor& t : written)
    if (t.defined() && std::ranges::none_of(outputs, [&](const at::Tensor& output) { return output.is_same(t); })) outputs.push_back(t);
  return outputs;
}

// Whether `schema` is `functional` with some arguments written to, or with tensors behind them that are.
bool is_form_of(const c10::FunctionSchema& schema, const c10::FunctionSchema& functional) {
  const auto &ours = schema.arguments(), &theirs = functional.arguments();
  if (ours.size() < theirs.size() || std::ranges::none_of(ours, is_written)) return false;
  for (size_t i = 0; i < ours.size(); ++i)
    if (i < theirs.size() ? *ours[i].type() != *theirs[i].type() || ours[i].name() != theirs[i].name() : !is_written(ours[i])) return false;
  return true;
}

}  // namespace

bool is_narrow(const at::Tensor& t) { return t.defined() && (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16); }

bool says_where(const c10::Argument& argument) {
  switch (kind_of(argument)) {
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::GeneratorType: return true;
    default: return argument.name() == "pin_memory";
  }
}

std::vector<c10::OperatorHandle> forms_of(const c10::OperatorHandle& functional) {
  static const auto* const kByName = [] {
    auto* names = new std::multimap<std::string, c10::OperatorName>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) names->emplace(name.name, name);
    return names;
  }();
  std::vector<c10::OperatorHandle> forms;
  const std::string base = functional.operator_name().name;
  constexpr std::string_view kFunctional = "_functional";  // aten::normal_functional is the twin of aten::normal_
  const std::string in_place = base.ends_with(kFunctional) ? base.substr(0, base.size() - kFunctional.size()) + "_" : base + "_";
  for (const std::string& name : {base, in_place}) {
    auto [begin, end] = kByName->equal_range(name);
    for (auto it = begin; it != end; ++it) {
      auto op = c10::Dispatcher::singleton().findSchema(it->second);
      if (op && is_form_of(op->schema(), functional.schema()) && op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) forms.push_back(*op);
    }
  }
  return forms;
}

Outcome on_cpu(const Call& call, bool exactly) {
  Outcome outcome;
  guarded(outcome, [&] {
    Copies copies(at::kCPU, exactly);
    outcome.outputs = call_boxed(call.op, copied(call, copies, at::kCPU));
  });
  return outcome;
}

Outcome on_device_at_once(const Call& call, bool may_fall_back) {
  Outcome outcome;
  Engine::get().set_debug(true);
  device::set_fallback(may_fall_back ? device::FallbackMode::Silent : device::FallbackMode::Error);
  guarded(outcome, [&] {
    Copies copies(device::tpu());
    for (const at::Tensor& t : call_boxed(call.op, copied(call, copies, device::tpu()))) outcome.outputs.push_back(t.defined() ? t.cpu() : t);
  });
  device::set_fallback(device::FallbackMode::Silent);
  Engine::get().set_debug(false);
  return outcome;
}

std::vector<Outcome> on_device(std::span<const Call> calls) {
  std::vector<Outcome> outcomes(calls.size());
  Copies uploaded(device::tpu());
  std::vector<Arguments> arguments;
  for (const Call& call : calls) arguments.push_back(copied(call, uploaded, device::tpu()));
  try {
    runtime::Recording recording("ops");
    for (size_t i = 0; i < calls.size(); ++i) {
      Engine::current()->make_numbers_parameters(!calls[i].numbers_known);
      guarded(outcomes[i], [&] {
        Copies own(device::tpu());  // a call that writes does so to copies, or the next one would see it
        if (writes(calls[i].op))
          for (c10::IValue& value : arguments[i]) value = own(value);
        outcomes[i].outputs = call_boxed(calls[i].op, std::move(arguments[i]));
      });
    }
    std::vector<runtime::TensorRef> results;
    for (const Outcome& outcome : outcomes)
      for (const at::Tensor& t : outcome.outputs)
        if (t.defined()) results.push_back(device::ref_of(t));
    if (results.empty()) return outcomes;
    auto program = recording.finish(results);
    auto storages = program->run({}, device::random_source(std::nullopt));
    Engine::get().synchronize();
    size_t next = 0;
    for (Outcome& outcome : outcomes)
      for (at::Tensor& t : outcome.outputs)
        if (t.defined()) {
          t = device::make_tensor(storages[next], program->result_types()[next]).cpu();
          ++next;
        }
  } catch (const std::exception&) {  // the calls that raise do so alone too
    if (calls.size() == 1) return {on_device_at_once(calls[0])};
    const size_t half = calls.size() / 2;
    outcomes = on_device(calls.first(half));
    std::ranges::move(on_device(calls.subspan(half)), std::back_inserter(outcomes));
  }
  return outcomes;
}

}  // namespace flambeau::op_test
