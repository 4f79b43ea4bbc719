// The generator: a seed and an offset in blocks of four 32-bit Philox words. Ops take the next offset when they are recorded.
#include <ATen/ATen.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>

#include "base/error.h"
#include "device/device.h"
#include "device/errors.h"
#include "runtime/trace.h"

namespace flambeau::device {
namespace {

// Marks the offset of a state that was taken while a step was recorded. Its other bits count from where each replay will begin, and in the
// seed's place stands which recording it was.
constexpr uint64_t kRecorded = uint64_t{1} << 63;

class Generator final : public c10::GeneratorImpl, public runtime::RandomSource {
 public:
  Generator() : GeneratorImpl(tpu(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    refuse_within_step("a seed", "manual_seed");
    position_ = {seed, 0};
  }
  void set_offset(uint64_t offset) override {
    refuse_within_step("an offset", "set_offset");
    position_.offset = offset;
  }
  uint64_t get_offset() const override { return position_.offset; }
  uint64_t current_seed() const override { return position_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return position_.seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    at_the_edge([&] { set_position(position_in(state)); }, [] { return std::string("set_state"); });
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const runtime::Trace* recorded = trace();
    const runtime::RandomPosition position = recorded ? runtime::RandomPosition{recorded->id(), kRecorded | recorded->drawn()} : position_;
    at::Tensor state = at::empty({sizeof position}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &position, sizeof position);
    return state.getIntrusivePtr();
  }

  runtime::RandomPosition advance(uint64_t blocks) override {
    std::lock_guard lock(mutex_);
    runtime::RandomPosition before = position_;
    position_.offset += blocks;
    return before;
  }

 private:
  // The step that is recorded, if this is the generator that it draws from.
  runtime::Trace* trace() const { return this == default_generator().unsafeGetGeneratorImpl() ? runtime::Trace::current() : nullptr; }

  void refuse_within_step(const char* what, const char* call) const {
    at_the_edge(
        [&] {
          if (trace())
            raise<NotImplemented>("[capture] {} that is set within a captured step would not be set again by its replays; set it outside", what);
        },
        [&] { return std::string(call); });
  }

  static runtime::RandomPosition position_in(const c10::TensorImpl& state) {
    runtime::RandomPosition position;
    if (state.numel() != sizeof position || state.dtype() != caffe2::TypeMeta::Make<uint8_t>() || !state.is_cpu())
      raise<InvalidArgument>("[generator] expected a state of {} bytes on the CPU, got {} elements; use what get_state() gave",
                             sizeof position, state.numel());
    std::memcpy(&position, state.data(), sizeof position);
    return position;
  }
  void set_position(const runtime::RandomPosition& position) {
    runtime::Trace* recorded = trace();
    const bool is_recorded = (position.offset & kRecorded) != 0;
    if (recorded && is_recorded && position.seed == recorded->id()) return recorded->put_back(position.offset & ~kRecorded);
    if (is_recorded)
      raise<InvalidArgument>("[generator] this state was taken while a captured step was recorded, and means nothing outside of it; take one outside with get_state()");
    if (recorded)
      raise<NotImplemented>("[capture] a state from outside that is set within a captured step would not be set again by its replays; set it outside");
    position_ = position;
  }

  Generator* clone_impl() const override {
    auto* copy = new Generator;
    copy->position_ = position_;
    return copy;
  }
  runtime::RandomPosition position_{c10::default_rng_seed_val, 0};
};

}  // namespace

const at::Generator& default_generator() {
  static auto* generator = new at::Generator(at::make_generator<Generator>());
  return *generator;
}

at::Generator new_generator() { return at::make_generator<Generator>(); }

runtime::RandomSource& random_source(const std::optional<at::Generator>& generator) {
  const at::Generator& chosen = generator && generator->defined() ? *generator : default_generator();
  auto* ours = dynamic_cast<Generator*>(chosen.unsafeGetGeneratorImpl());
  if (!ours)
    raise<InvalidArgument>("Expected a 'tpu' device type for generator but found '{}'", chosen.device().str());
  return *ours;
}

}  // namespace flambeau::device
