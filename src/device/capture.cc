#include "device/capture.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>

#include "base/error.h"
#include "device/device.h"
#include "runtime/difference.h"
#include "runtime/loop_recording.h"
#include "runtime/recording.h"

namespace flambeau::device {
namespace {

using runtime::Engine;
using runtime::Recording;
using runtime::StepProgram;
using runtime::TensorRef;

// Backward runs on the calling thread, so that a recording sees it.
class SingleThreadedAutograd {
 public:
  SingleThreadedAutograd() : before_(c10::AutogradState::get_tls_state()) {
    auto state = before_;
    state.set_multithreading_enabled(false);
    c10::AutogradState::set_tls_state(state);
  }
  ~SingleThreadedAutograd() { c10::AutogradState::set_tls_state(before_); }
  SingleThreadedAutograd(const SingleThreadedAutograd&) = delete;
  SingleThreadedAutograd& operator=(const SingleThreadedAutograd&) = delete;

 private:
  c10::AutogradState before_;
};

}  // namespace

struct Capture::Impl {
  std::string name;
  Function fn;
  std::unique_ptr<StepProgram> last;  // the latest recording
  bool accepted = false;              // two recordings were equal: replay
  bool retried = false;               // the state that the first call made has been allowed for

  // Records `fn`; nothing runs.
  std::unique_ptr<StepProgram> record(const std::vector<at::Tensor>& inputs) {
    SingleThreadedAutograd single_threaded;
    Recording recording(name);
    std::vector<at::Tensor> placeholders;
    for (const at::Tensor& input : inputs) {
      hlo::Type type = ref_of(input).type();
      placeholders.push_back(make_tensor(recording.add_input(type, Engine::sharding_of(ref_of(input))), type));
    }
    std::vector<at::Tensor> results = without_bits(fn(placeholders));
    return recording.finish(refs_of(results, fmt::format("the results of '{}'", name)));
  }

  pjrt::MemoryStats memory() const {
    if (!last) return {};
    last->compile();
    try {
      return last->memory_stats();
    } catch (const PluginError&) {
      return {};  // not every plugin tells
    }
  }

  void compare(const StepProgram& next) const {
    if (auto text = runtime::difference(last->trace(), next.trace()))
      raise<InvalidArgument>(
          "[capture] '{}' does not do the same thing at each step, so replaying it would be wrong: {}. A number that changes from step "
          "to step must be a tensor: pass it as an input, or keep it in a tpu tensor (for PyTorch's optimizers: capturable=True, and lr "
          "as a tensor)", name, *text);
  }

  void check_inputs(const std::vector<TensorRef>& inputs) const {
    const std::vector<hlo::Type>& types = last->input_types();
    if (inputs.size() != types.size())
      raise<InvalidArgument>("[capture] '{}' was recorded with {} inputs, got {}", name, types.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      hlo::Type type = inputs[i].type();
      if (type != types[i])
        raise<InvalidArgument>("[capture] input {} of '{}' was recorded as {}, got {}; capture the function anew for other shapes", i,
                               name, types[i].to_string(), type.to_string());
    }
  }

  std::vector<at::Tensor> run(const std::vector<TensorRef>& inputs) {
    auto storages = last->run(inputs, random_source(std::nullopt));
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < storages.size(); ++i) results.push_back(make_tensor(storages[i], last->result_types()[i]));
    return results;
  }
};

Capture::Capture(std::string name, Function fn) : impl_(std::make_unique<Impl>()) {
  impl_->name = std::move(name);
  impl_->fn = std::move(fn);
}
Capture::~Capture() = default;
Capture::Capture(Capture&&) noexcept = default;

namespace {

bool runs_on_host(const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) return !Engine::started();
  return std::none_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return is_tpu(t); });
}

}  // namespace

void Capture::prepare(const std::vector<at::Tensor>& example_inputs) {
  if (runs_on_host(example_inputs) || impl_->accepted) return;
  refs_of(example_inputs, fmt::format("the inputs of '{}'", impl_->name));
  impl_->last = impl_->record(example_inputs);
  if (impl_->last->escaped() > 0)
    raise<InvalidArgument>("[capture] '{}' makes {} tensors that outlive it; call it once instead of preparing it", impl_->name,
                           impl_->last->escaped());
  std::unique_ptr<StepProgram> second = impl_->record(example_inputs);
  impl_->compare(*second);
  impl_->last = std::move(second);
  impl_->last->compile();
  impl_->accepted = true;
}

std::vector<at::Tensor> Capture::operator()(const std::vector<at::Tensor>& given) {
  if (runs_on_host(given) || Engine::current()) return impl_->fn(given);  // inside another capture: a part of it
  const std::vector<at::Tensor> inputs = without_bits(given);
  const std::vector<TensorRef> refs = refs_of(inputs, fmt::format("the inputs of '{}'", impl_->name));
  if (impl_->accepted) {
    impl_->check_inputs(refs);
    return impl_->run(refs);
  }
  std::unique_ptr<StepProgram> next = impl_->record(inputs);
  if (impl_->last) {
    impl_->check_inputs(refs);
    // State that the first call made (an optimizer's moments, gradients) lets the second differ once.
    bool first_made_state = !impl_->retried && impl_->last->escaped() > 0 && impl_->last->trace().key() != next->trace().key();
    if (first_made_state) {
      impl_->retried = true;
    } else {
      impl_->compare(*next);
      impl_->accepted = true;
    }
  }
  impl_->last = std::move(next);
  return impl_->run(refs);
}

const runtime::StepProgram* Capture::program() const { return impl_->last.get(); }

int64_t Capture::temporary_bytes() const { return impl_->memory().temporary; }

int64_t Capture::argument_bytes() const { return impl_->memory().argument; }

std::vector<at::Tensor> loop(int64_t trip_count, std::vector<at::Tensor> carry,
                             const std::function<std::vector<at::Tensor>(const at::Tensor&, const std::vector<at::Tensor>&)>& body) {
  if (!Engine::current()) {
    for (int64_t i = 0; i < trip_count; ++i) {
      auto device = carry.empty() ? c10::Device(at::kCPU) : carry.front().device();
      carry = body(at::full({}, i, at::TensorOptions().dtype(at::kLong).device(device)), carry);
    }
    return carry;
  }
  carry = without_bits(std::move(carry));
  std::vector<TensorRef> refs = refs_of(carry, "the carry of a loop");
  runtime::LoopRecording recording(trip_count, refs);
  auto wrap = [](const std::shared_ptr<runtime::Storage>& storage, const TensorRef& like) {
    return make_tensor(storage, like.type());
  };
  std::vector<at::Tensor> inner;
  for (size_t i = 0; i < carry.size(); ++i) inner.push_back(wrap(recording.carry()[i], refs[i]));
  std::vector<at::Tensor> next = without_bits(body(make_tensor(recording.index(), {DType::S64, {}}), inner));
  auto wants_gradient = [](const at::Tensor& t) { return t.requires_grad(); };
  if (at::GradMode::is_enabled() &&
      (std::any_of(carry.begin(), carry.end(), wants_gradient) || std::any_of(next.begin(), next.end(), wants_gradient)))
    raise<NotImplemented>("[loop] gradients do not pass a captured loop; use scan, or detach what the body carries");
  auto storages = recording.finish(refs_of(next, "what a loop's body gives"));
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < storages.size(); ++i) results.push_back(wrap(storages[i], refs[i]));
  return results;
}

}  // namespace flambeau::device
