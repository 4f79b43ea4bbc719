#include "nn/parameter.h"

#include <array>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"

namespace flambeau::nn {
namespace {

// Four standard normals from counter (block, attempt) under `key`, by Box-Muller on two pairs of 32-bit words.
std::array<double, 4> normals(uint64_t key, uint64_t block, uint32_t attempt) {
  const philox::Block words = philox::encrypt({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), attempt, 0},
                                              {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  std::array<double, 4> out;
  for (size_t pair = 0; pair < 4; pair += 2) {
    const double u = (words[pair] + 0.5) * 0x1p-32, angle = 2 * std::numbers::pi * ((words[pair + 1] + 0.5) * 0x1p-32);
    const double radius = std::sqrt(-2 * std::log(u));
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
  return out;
}

void fill_normal(float* out, int64_t count, int64_t part_elements, const Init& init, uint64_t key) {
  at::parallel_for(0, (count + 3) / 4, 4096, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const auto draw = normals(key, static_cast<uint64_t>(block), 0);
      for (int64_t i = 4 * block; i < std::min(count, 4 * block + 4); ++i) {
        const size_t lane = static_cast<size_t>(i % 4);
        const double scale = init.part_scale.empty() ? 1 : init.part_scale[static_cast<size_t>(i / part_elements)];
        double value = draw[lane];
        for (uint32_t attempt = 1; init.bound > 0 && std::abs(value) * init.std * scale > init.bound; ++attempt) {
          value = normals(key, static_cast<uint64_t>(block), attempt)[lane];
        }
        out[i] = static_cast<float>(value * init.std * scale);
      }
    }
  });
}

}  // namespace

int64_t Parameter::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

at::Tensor initial_values(const Parameter& parameter, uint64_t seed) {
  const Init& init = parameter.init;
  at::Tensor values = at::empty(parameter.shape, at::kFloat);
  switch (init.kind) {
    case Init::Kind::Ones: return values.fill_(1);
    case Init::Kind::Zeros: return values.fill_(0);
    case Init::Kind::Normal: break;
  }
  const int64_t parts = init.part_scale.empty() ? 1 : static_cast<int64_t>(init.part_scale.size());
  FLAMBEAU_CHECK(parts == 1 || parts == parameter.shape.at(0), "part_scale has one entry an index of dimension 0");
  fill_normal(values.data_ptr<float>(), parameter.elements(), std::max<int64_t>(1, parameter.elements() / parts), init,
              hash_string(parameter.name, seed));
  return values;
}

void Parameters::add(std::string name, at::Tensor& member, std::vector<int64_t> shape, Init init) {
  for (const Parameter& p : parameters_) FLAMBEAU_CHECK(p.name != name, "parameter names are unique");
  parameters_.push_back({std::move(name), std::move(shape), std::move(init), &member});
}

void Parameters::initialize(uint64_t seed, at::Device device) {
  for (const Parameter& p : parameters_) *p.tensor = initial_values(p, seed).to(device).set_requires_grad(true);
}

void Parameters::allocate(at::Device device) {
  for (const Parameter& p : parameters_) {
    *p.tensor = at::zeros(p.shape, at::TensorOptions(at::kFloat).device(device)).set_requires_grad(true);
  }
}

int64_t Parameters::elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.elements();
  return n;
}

std::vector<at::Tensor> Parameters::tensors() const {
  std::vector<at::Tensor> out;
  out.reserve(parameters_.size());
  for (const Parameter& p : parameters_) out.push_back(*p.tensor);
  return out;
}

}  // namespace flambeau::nn
