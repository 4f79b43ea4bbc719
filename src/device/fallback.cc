#include "device/fallback.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/ostream.h>

#include "base/error.h"
#include "base/hash.h"
#include "device/arguments.h"
#include "device/device.h"
#include "device/errors.h"

namespace flambeau::device {
namespace {

std::atomic<FallbackMode> g_mode{FallbackMode::Warn};

struct Counts {
  std::mutex mutex;
  std::map<std::string, int64_t> by_name;
};
Counts& counts() {
  static auto* instance = new Counts;  // threads may outlive statics
  return *instance;
}

// Whether the op runs for the first time.
bool count(const std::string& name) {
  Counts& c = counts();
  std::lock_guard lock(c.mutex);
  return ++c.by_name[name] == 1;
}

void refuse_what_copies_break(const c10::OperatorHandle& op, const std::string& name, const std::string& why) {
  if (runtime::Engine::current())
    raise<NotImplemented>("[capture] {}: {}; what runs on the CPU cannot be part of a captured step, call it outside", name, why);
  for (const c10::Argument& result : op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite())
      raise<NotImplemented>("[tpu] {}: {}; its result is a view, which a copy on the CPU cannot give, use x.cpu() before", name, why);
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))
    raise<NotImplemented>("[tpu] {}: {}; PyTorch has no kernel of it for the CPU either", name, why);
  if (g_mode == FallbackMode::Error)
    raise<NotImplemented>("[tpu] {}: {}; torch.tpu.set_fallback(\"error\") keeps it from running on the CPU", name, why);
}

// A generator of the CPU at the next position of the device's: seeds repeat, and each call draws other numbers.
at::Generator cpu_twin(const std::optional<at::Generator>& generator) {
  const runtime::RandomPosition position = random_source(generator).advance(1);
  Hasher hasher;
  hasher.add(position.seed).add(position.offset);
  return at::detail::createCPUGenerator(hasher.value());
}

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// The tensors of one call and their twins on the CPU.
class Twins {
 public:
  // Tensors are noted first, so that it is known which of them lie over each other.
  void note(const c10::IValue& value, bool written, bool may_be_on_cpu) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (is_tpu(tensor)) {
        auto same = std::ranges::find_if(twins_, [&](const Twin& t) { return share_storage(t.original, tensor) && same_view(t.original, tensor); });
        if (same == twins_.end())
          twins_.push_back({tensor, {}, written});
        else
          same->written |= written;
      } else if (tensor.dim() > 0 && !may_be_on_cpu) {
        foreign_ = tensor;
      }
    });
  }

  void make() {
    if (foreign_.defined() && !twins_.empty()) refuse_device(foreign_);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (Twin& twin : twins_) twin.copy = is_overlaid(twin) ? over_whole_storage(twin.original) : twin.original.to(at::kCPU);
    for (Twin& twin : twins_) twin.copy = twin.copy.resolve_conj().resolve_neg();
  }

  at::Tensor of(const at::Tensor& tensor) const {
    if (!tensor.defined() || !is_tpu(tensor)) return tensor;
    return std::ranges::find_if(twins_, [&](const Twin& t) { return share_storage(t.original, tensor) && same_view(t.original, tensor); })->copy;
  }

  // An argument for the CPU.
  c10::IValue of(const c10::IValue& value) const {
    if (value.isTensor()) return of(value.toTensor());
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(of(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(of(*tensor)) : std::nullopt);
      return list;
    }
    return value;
  }

  void write_back() const {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (const Twin& twin : twins_) {
      if (!twin.written) continue;
      if (twin.original.sizes() != twin.copy.sizes()) twin.original.resize_(twin.copy.sizes());
      twin.original.copy_(twin.copy);
    }
  }

 private:
  struct Twin {
    at::Tensor original, copy;
    bool written = false;
  };

  // Whether another tensor of the call looks at the same storage and one of the two is written.
  bool is_overlaid(const Twin& twin) const {
    return std::ranges::any_of(twins_, [&](const Twin& other) {
      return &other != &twin && (other.written || twin.written) && share_storage(other.original, twin.original);
    });
  }

  // The same view of a copy of the storage, one for all tensors over it.
  at::Tensor over_whole_storage(const at::Tensor& tensor) {
    auto known = std::ranges::find_if(storages_, [&](const auto& s) { return share_storage(s.first, tensor); });
    if (known == storages_.end()) {
      const at::Tensor bytes = at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage());
      known = storages_.emplace(storages_.end(), tensor, bytes.to(at::kCPU));
    }
    at::Tensor view = at::empty({0}, tensor.options().device(at::kCPU));
    view.set_(known->second.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    if (tensor.is_conj()) view = view.conj();
    return tensor.is_neg() ? at::_neg_view(view) : view;
  }

  std::vector<Twin> twins_;
  std::vector<std::pair<at::Tensor, at::Tensor>> storages_;  // a tensor over it, its bytes on the CPU
  at::Tensor foreign_;                                       // one that lies on the CPU and has dimensions
};

at::Tensor to_device(const at::Tensor& result, const std::string& name) {
  if (!result.defined()) return result;
  if (result.layout() != c10::kStrided)
    raise<NotImplemented>("[tpu] {} gives a tensor of layout {}, which the device does not have; use x.cpu() before", name,
                          fmt::streamed(result.layout()));
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return result.to(tpu());
}

// The results as the caller sees them: what was written is the argument itself.
std::vector<c10::IValue> results_of(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments,
                                    c10::ArrayRef<c10::IValue> results) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  std::vector<c10::IValue> given;
  for (size_t i = 0; i < results.size(); ++i) {
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    if (alias) {
      const auto& declared = schema.arguments();
      const auto same = std::ranges::find_if(declared, [&](const c10::Argument& argument) {
        return argument.alias_info() && argument.alias_info()->beforeSets() == alias->beforeSets();
      });
      FLAMBEAU_CHECK(same != declared.end(), "a result that is written is one of the arguments");
      given.push_back(arguments[static_cast<size_t>(same - declared.begin())]);
    } else if (results[i].isTensor()) {
      given.emplace_back(to_device(results[i].toTensor(), name));
    } else if (results[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : results[i].toTensorVector()) list.push_back(to_device(tensor, name));
      given.emplace_back(std::move(list));
    } else {
      given.push_back(results[i]);
    }
  }
  return given;
}

}  // namespace

void set_fallback(FallbackMode mode) { g_mode = mode; }
FallbackMode fallback_mode() { return g_mode; }

std::map<std::string, int64_t> fallbacks() {
  Counts& c = counts();
  std::lock_guard lock(c.mutex);
  return c.by_name;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::string& why) {
  const auto& declared = op.schema().arguments();
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, declared.size());
  const std::string name = c10::toString(op.operator_name());
  const auto described = [&] { return describe(op, arguments.data()); };
  at_the_edge([&] {
    refuse_what_copies_break(op, name, why);
    Twins twins;
    for (size_t i = 0; i < declared.size(); ++i) twins.note(arguments[i], is_written(declared[i]), arguments[i].isOptionalTensorList());
    twins.make();
    for (size_t i = 0; i < declared.size(); ++i) {
      if (is_generator(declared[i]))
        torch::jit::push(*stack, cpu_twin(arguments[i].toOptional<at::Generator>()));
      else
        torch::jit::push(*stack, twins.of(arguments[i]));
    }
    if (count(name) && g_mode == FallbackMode::Warn)
      warn(fmt::format("{} runs on the CPU, between copies{}: {}. Said once for each op; torch.tpu.fallbacks() counts, "
                       "torch.tpu.set_fallback(\"error\") refuses", name, user_line(), why));
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } catch (c10::Error& error) {
      error.add_context(fmt::format("[{}{}]", described(), user_line()));
      throw;
    }
    twins.write_back();
    const std::vector<c10::IValue> results = torch::jit::pop(*stack, op.schema().returns().size());
    for (c10::IValue& result : results_of(op, arguments, results)) torch::jit::push(*stack, std::move(result));
  }, described);
}

}  // namespace flambeau::device
