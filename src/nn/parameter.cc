#include "nn/parameter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

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

// `name` is `pattern` with a number in place of each *.
bool matches(std::string_view pattern, std::string_view name) {
  for (const char expected : pattern) {
    if (expected == '*') {
      const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
      if (digits == 0) return false;
      name.remove_prefix(digits);
    } else {
      if (name.empty() || name.front() != expected) return false;
      name.remove_prefix(1);
    }
  }
  return name.empty();
}

// row(0), row(1), ... as one float32 tensor on the CPU, made a row at a time.
template <class Row>
at::Tensor stack_rows(size_t count, Row&& row) {
  at::Tensor all;
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor values = row(i);
    if (!all.defined()) {
      std::vector<int64_t> shape = values.sizes().vec();
      shape.insert(shape.begin(), static_cast<int64_t>(count));
      all = at::empty(shape, at::kFloat);
    }
    all.select(0, static_cast<int64_t>(i)).copy_(values);
  }
  return all;
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

void Parameters::add(std::string name, Weight& member, std::vector<int64_t> shape, Init init) {
  for (const Parameter& p : parameters_) FLAMBEAU_CHECK(p.name != name, "parameter names are unique");
  physical_.push_back({&member, {parameters_.size()}});
  parameters_.push_back({std::move(name), std::move(shape), std::move(init), {}, physical_.size() - 1});
}

void Parameters::set_axes(std::span<const AxesRule> rules) {
  for (Parameter& p : parameters_) {
    std::vector<const AxesRule*> found;
    for (const AxesRule& rule : rules) {
      if (matches(rule.pattern, p.name)) found.push_back(&rule);
    }
    if (found.size() != 1) {
      raise<InvalidArgument>("[axes] expected one rule for parameter {}, got {}{}; each parameter's axes stand in one row of the "
                             "model's table", p.name, found.size(), found.empty() ? "" : ", of them " + found[1]->pattern);
    }
    if (found[0]->axes.size() != p.shape.size()) {
      raise<InvalidArgument>("[axes] expected one axis a dimension of {}, which has {}, got {} in the rule {}; name those that "
                             "are never split \"\"", p.name, p.shape.size(), found[0]->axes.size(), found[0]->pattern);
    }
    p.axes = found[0]->axes;
    FLAMBEAU_CHECK(!physical_[p.physical].stacked, "axes are set before layers are stacked");
    physical_[p.physical].weight->axes = p.axes;
  }
}

void Parameters::stack(std::span<Weight* const> members, Weight& stacked) {
  Physical whole{&stacked, {}, true};
  size_t place = physical_.size();
  for (Weight* member : members) {
    const auto found = std::ranges::find_if(physical_, [&](const Physical& p) { return p.weight == member; });
    FLAMBEAU_CHECK(found != physical_.end() && !found->stacked && !member->value.defined(),
                   "members are stacked once, before they have values");
    const Parameter &first = parameters_[whole.rows.empty() ? found->rows[0] : whole.rows[0]], &p = parameters_[found->rows[0]];
    if (p.shape != first.shape || p.axes != first.axes) {
      raise<InvalidArgument>("[stack] expected layers of equal shapes, got {} [{}] and {} [{}]; set model.scan = false", first.name,
                             fmt::join(first.shape, ", "), p.name, fmt::join(p.shape, ", "));
    }
    place = std::min(place, static_cast<size_t>(found - physical_.begin()));
    whole.rows.push_back(found->rows[0]);
  }
  stacked.axes = parameters_[whole.rows.at(0)].axes;
  stacked.axes.insert(stacked.axes.begin(), "layers");
  physical_[place] = std::move(whole);
  std::erase_if(physical_, [&](const Physical& p) { return std::ranges::count(members, p.weight) != 0; });
  for (size_t i = 0; i < physical_.size(); ++i) {
    for (size_t row = 0; row < physical_[i].rows.size(); ++row) {
      parameters_[physical_[i].rows[row]].physical = i;
      parameters_[physical_[i].rows[row]].row = row;
    }
  }
}

void Parameters::initialize(uint64_t seed, at::Device device) {
  for (const Physical& p : physical_) {
    const auto values = [&](size_t row) { return initial_values(parameters_[p.rows[row]], seed); };
    p.weight->value = (p.stacked ? stack_rows(p.rows.size(), values) : values(0)).to(device).set_requires_grad(true);
  }
}

void Parameters::allocate(at::Device device) {
  for (const Physical& p : physical_) {
    p.weight->value = at::zeros(shape_of(p), at::TensorOptions(at::kFloat).device(device)).set_requires_grad(true);
  }
}

int64_t Parameters::elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.elements();
  return n;
}

std::vector<at::Tensor> Parameters::tensors() const {
  std::vector<at::Tensor> out;
  out.reserve(physical_.size());
  for (const Physical& p : physical_) out.push_back(p.weight->value);
  return out;
}

std::vector<at::Tensor> Parameters::rows_of(const std::vector<at::Tensor>& like_physical) const {
  FLAMBEAU_CHECK(like_physical.size() == physical_.size(), "one tensor a physical tensor");
  std::vector<at::Tensor> out(parameters_.size());
  for (size_t i = 0; i < physical_.size(); ++i) {
    const Physical& p = physical_[i];
    const at::Tensor all = p.stacked ? like_physical[i].detach().cpu() : like_physical[i].detach();
    for (size_t row = 0; row < p.rows.size(); ++row) out[p.rows[row]] = p.stacked ? all.select(0, static_cast<int64_t>(row)) : all;
  }
  return out;
}

void Parameters::assign(const std::vector<at::Tensor>& like_physical, const std::function<at::Tensor(size_t logical)>& value) const {
  FLAMBEAU_CHECK(like_physical.size() == physical_.size(), "one tensor a physical tensor");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < physical_.size(); ++i) {
    const Physical& p = physical_[i];
    const auto values = [&](size_t row) { return value(p.rows[row]); };
    like_physical[i].copy_(p.stacked ? stack_rows(p.rows.size(), values) : values(0));
  }
}

std::vector<int64_t> Parameters::shape_of(const Physical& physical) const {
  std::vector<int64_t> shape = parameters_[physical.rows[0]].shape;
  if (physical.stacked) shape.insert(shape.begin(), static_cast<int64_t>(physical.rows.size()));
  return shape;
}

}  // namespace flambeau::nn
