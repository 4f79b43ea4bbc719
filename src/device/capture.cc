#include "device/capture.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>

#include <unordered_set>

#include "base/error.h"
#include "device/device.h"
#include "device/live_numbers.h"
#include "runtime/difference.h"
#include "runtime/loop_recording.h"
#include "runtime/recording.h"

namespace flambeau::device {
namespace {

using runtime::Engine;
using runtime::Recording;
using runtime::Storage;
using runtime::TensorRef;
using runtime::Trace;

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

std::vector<Storage*> storages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Storage*> storages;
  for (const at::Tensor& tensor : tensors) storages.push_back(&storage_of(tensor));
  return storages;
}

}  // namespace

// ---- one recording ----------------------------------------------------------------------------------------------------------

CapturedStep::CapturedStep(const std::string& name, const std::vector<at::Tensor>& given, const Function& fn) : name_(name) {
  const std::vector<at::Tensor> inputs = without_bits(given);
  const std::vector<TensorRef> refs = refs_of(inputs, fmt::format("the inputs of '{}'", name));
  SingleThreadedAutograd single_threaded;
  NumbersScope numbers;
  Recording recording(name);
  std::vector<at::Tensor> placeholders;
  for (size_t i = 0; i < inputs.size(); ++i) {
    hlo::Type type = refs[i].type();
    placeholders.push_back(make_tensor(recording.add_input(type, Engine::sharding_of(refs[i])), type));
    placeholders.back().requires_grad_(inputs[i].requires_grad());
  }
  Outcome outcome = fn(placeholders);
  const std::vector<Storage*> places = storages_of(outcome.places);
  program_ = recording.finish(refs_of(without_bits(std::move(outcome.results)), fmt::format("the results of '{}'", name)), places);
  check_inputs_are_no_state(inputs, places);
}
CapturedStep::~CapturedStep() = default;

void CapturedStep::check_inputs(const std::vector<at::Tensor>& inputs) const {
  if (accepts_inputs(inputs)) return;
  const std::vector<hlo::Type>& types = program_->input_types();
  if (inputs.size() != types.size())
    raise<InvalidArgument>("[capture] '{}' was recorded with {} inputs, got {}", name_, types.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    hlo::Type type = ref_of(inputs[i]).type();
    if (type != types[i])
      raise<InvalidArgument>("[capture] input {} of '{}' was recorded as {}, got {}; capture the function anew for other shapes", i,
                             name_, types[i].to_string(), type.to_string());
  }
}

bool CapturedStep::accepts_inputs(const std::vector<at::Tensor>& inputs) const {
  const std::vector<hlo::Type>& types = program_->input_types();
  return std::ranges::equal(inputs, types, [](const at::Tensor& input, const hlo::Type& type) {
    return is_tpu(input) && dtype_of(input.scalar_type()) == type.dtype && input.sizes() == at::IntArrayRef(type.dims);
  });
}

bool CapturedStep::accepts_places(const std::vector<at::Tensor>& places) const {
  if (!std::ranges::all_of(places, [](const at::Tensor& place) { return place.defined() && is_tpu(place); })) return false;
  const std::vector<Storage*> storages = storages_of(places);
  for (size_t i = 0; i < places.size(); ++i)
    if (!places[i].is_contiguous() || static_cast<int64_t>(places[i].nbytes()) != storages[i]->nbytes()) return false;
  const bool each_alone = std::unordered_set(storages.begin(), storages.end()).size() == storages.size();
  return each_alone && program_->fits(storages);
}

void CapturedStep::check_inputs_are_no_state(const std::vector<at::Tensor>& inputs, std::span<Storage* const> places) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Storage& storage = storage_of(inputs[i]);
    const bool changes = program_->writes(storage) || std::ranges::find(places, &storage) != places.end();
    if (changes || (inputs[i].requires_grad() && program_->reads(storage)))
      raise<InvalidArgument>("[capture] argument {} of '{}' is also read from outside and {} by the function, whose program would see it as it was "
                             "before; do not pass it, or pass a copy (x.detach().clone())", i, name_, changes ? "changed" : "differentiated");
  }
}

bool CapturedStep::keeps_types() const { return program_->keeps_types(); }

std::vector<at::Tensor> CapturedStep::run(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& places,
                                          std::span<const double> numbers) {
  const std::vector<at::Tensor> inputs = without_bits(given);
  const std::vector<TensorRef> refs = refs_of(inputs, fmt::format("the inputs of '{}'", name_));
  const std::vector<Storage*> standing = storages_of(places);
  check_inputs_are_no_state(inputs, standing);
  auto storages = program_->run(refs, random_source(std::nullopt), standing, numbers);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < storages.size(); ++i) results.push_back(make_tensor(storages[i], program_->result_types()[i]));
  return results;
}

std::optional<std::string> CapturedStep::difference(const CapturedStep& next) const {
  return runtime::difference(program_->trace(), next.program_->trace());
}

size_t CapturedStep::escaped(const std::vector<at::Tensor>& known) const { return program_->escaped(refs_of(known, "tensors made inside")); }
void CapturedStep::let_go(const at::Tensor& made) { program_->let_go(storage_of(made)); }

bool is_recording() { return Trace::current() != nullptr; }

bool made_in_recording(const at::Tensor& tensor) {
  return is_recording() && is_tpu(tensor) && storage_of(tensor).recording() == Trace::current()->id();
}

bool touched_in_recording(const at::Tensor& tensor) {
  return is_recording() && is_tpu(tensor) && Trace::current()->bindings().contains(storage_of(tensor).id);
}

size_t calls_in_recording() { return is_recording() ? Trace::current()->calls().size() : 0; }

RunsAtOnce::RunsAtOnce() : before_(Trace::current()) { Trace::set_current(nullptr); }
RunsAtOnce::~RunsAtOnce() { Trace::set_current(before_); }

// ---- two recordings, then replays ---------------------------------------------------------------------------------------------

struct Capture::Impl {
  std::string name;
  Function fn;
  std::unique_ptr<CapturedStep> last;  // the latest recording
  bool accepted = false;               // two recordings were equal: replay
  bool retried = false;                // the state that the first call made has been allowed for

  // Records `fn`; nothing runs.
  std::unique_ptr<CapturedStep> record(const std::vector<at::Tensor>& inputs) {
    return std::make_unique<CapturedStep>(
        name, inputs, [&](const std::vector<at::Tensor>& placeholders) { return CapturedStep::Outcome{fn(placeholders)}; });
  }

  pjrt::MemoryStats memory() const {
    if (!last) return {};
    last->program().compile();
    try {
      return last->program().memory_stats();
    } catch (const PluginError&) {
      return {};  // not every plugin tells
    }
  }

  void compare(const CapturedStep& next) const {
    if (auto text = last->difference(next))
      raise<InvalidArgument>(
          "[capture] '{}' does not do the same thing at each step, so replaying it would be wrong: {}. A number that changes from step "
          "to step must be a tensor: pass it as an input, or keep it in a tpu tensor", name, *text);
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
  impl_->last = impl_->record(example_inputs);
  if (const size_t escaped = impl_->last->program().escaped())
    raise<InvalidArgument>("[capture] '{}' makes {} tensors that outlive it; call it once instead of preparing it", impl_->name, escaped);
  std::unique_ptr<CapturedStep> second = impl_->record(example_inputs);
  impl_->compare(*second);
  impl_->last = std::move(second);
  impl_->last->program().compile();
  impl_->accepted = true;
}

std::vector<at::Tensor> Capture::operator()(const std::vector<at::Tensor>& inputs) {
  if (runs_on_host(inputs) || is_recording()) return impl_->fn(inputs);  // inside another capture: a part of it
  if (impl_->accepted) {
    impl_->last->check_inputs(inputs);
    return impl_->last->run(inputs);
  }
  std::unique_ptr<CapturedStep> next = impl_->record(inputs);
  if (impl_->last) {
    impl_->last->check_inputs(inputs);
    // State that the first call made (an optimizer's moments, gradients) lets the second differ once.
    const runtime::StepProgram& before = impl_->last->program();
    bool first_made_state = !impl_->retried && before.escaped() > 0 && before.trace().key() != next->program().trace().key();
    if (first_made_state) {
      impl_->retried = true;
    } else {
      impl_->compare(*next);
      impl_->accepted = true;
    }
  }
  impl_->last = std::move(next);
  return impl_->last->run(inputs);
}

const runtime::StepProgram* Capture::program() const { return impl_->last ? &impl_->last->program() : nullptr; }

int64_t Capture::temporary_bytes() const { return impl_->memory().temporary; }

int64_t Capture::argument_bytes() const { return impl_->memory().argument; }

// ---- loops --------------------------------------------------------------------------------------------------------------------

std::vector<at::Tensor> loop(int64_t trip_count, std::vector<at::Tensor> carry,
                             const std::function<std::vector<at::Tensor>(const at::Tensor&, const std::vector<at::Tensor>&)>& body) {
  if (!Trace::current()) {
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
