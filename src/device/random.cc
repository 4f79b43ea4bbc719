// The generator: a seed and an offset in blocks of four 32-bit Philox words. Ops take the next offset when they are recorded.
#include <ATen/ATen.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>

#include "base/error.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

class Generator final : public c10::GeneratorImpl, public runtime::RandomSource {
 public:
  Generator() : GeneratorImpl(tpu(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { position_ = {seed, 0}; }
  void set_offset(uint64_t offset) override { position_.offset = offset; }
  uint64_t get_offset() const override { return position_.offset; }
  uint64_t current_seed() const override { return position_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return position_.seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    if (state.numel() != sizeof position_ || state.dtype() != caffe2::TypeMeta::Make<uint8_t>() || !state.is_cpu())
      raise<InvalidArgument>("[generator] expected a state of {} bytes on the CPU, got {} elements; use what get_state() gave",
                             sizeof position_, state.numel());
    std::memcpy(&position_, state.data(), sizeof position_);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({sizeof position_}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &position_, sizeof position_);
    return state.getIntrusivePtr();
  }

  runtime::RandomPosition advance(uint64_t blocks) override {
    std::lock_guard lock(mutex_);
    runtime::RandomPosition before = position_;
    position_.offset += blocks;
    return before;
  }

 private:
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
