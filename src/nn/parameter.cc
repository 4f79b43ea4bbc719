#include "nn/parameter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"
#include "spmd/plan.h"

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

// Elements [begin, end) of the whole parameter.
void fill_normal(float* out, int64_t begin, int64_t end, int64_t part_elements, const Init& init, uint64_t key) {
  at::parallel_for(begin / 4, (end + 3) / 4, 4096, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const auto draw = normals(key, static_cast<uint64_t>(block), 0);
      for (int64_t i = std::max(begin, 4 * block); i < std::min(end, 4 * block + 4); ++i) {
        const size_t lane = static_cast<size_t>(i % 4);
        const double scale = init.part_scale.empty() ? 1 : init.part_scale[static_cast<size_t>(i / part_elements)];
        double value = draw[lane];
        for (uint32_t attempt = 1; init.bound > 0 && std::abs(value) * init.std * scale > init.bound; ++attempt) {
          value = normals(key, static_cast<uint64_t>(block), attempt)[lane];
        }
        out[i - begin] = static_cast<float>(value * init.std * scale);
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

int64_t Parameter::elements() const { return c10::multiply_integers(shape); }

void fill_initial(const Parameter& parameter, uint64_t seed, std::span<const int64_t> start, std::span<const int64_t> size, float* out) {
  const Init& init = parameter.init;
  const size_t rank = parameter.shape.size();
  FLAMBEAU_CHECK(start.size() == rank && size.size() == rank, "a part has the parameter's dimensions");
  const int64_t elements = c10::multiply_integers(size.begin(), size.end());
  if (elements == 0) return;
  if (init.kind != Init::Kind::Normal) {
    std::fill_n(out, elements, init.kind == Init::Kind::Ones ? 1.0f : 0.0f);
    return;
  }
  const int64_t scales = init.part_scale.empty() ? 1 : static_cast<int64_t>(init.part_scale.size());
  FLAMBEAU_CHECK(scales == 1 || scales == parameter.shape.at(0), "part_scale has one entry an index of dimension 0");
  const int64_t scaled = std::max<int64_t>(1, parameter.elements() / scales);
  const uint64_t key = hash_string(parameter.name, seed);
  // Trailing dimensions that the part has whole make one run of consecutive elements.
  size_t outer = rank;
  int64_t run = 1;
  while (outer > 0 && size[outer - 1] == parameter.shape[outer - 1]) run *= parameter.shape[--outer];
  if (outer > 0) run *= size[--outer];
  at::parallel_for(0, elements / run, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t begin = 0, stride = parameter.elements(), rest = i, count = elements / run;
      for (size_t d = 0; d < rank; ++d) {
        stride /= parameter.shape[d];
        int64_t index = start[d];
        if (d < outer) {
          count /= size[d];
          index += rest / count;
          rest %= count;
        }
        begin += index * stride;
      }
      fill_normal(out + i * run, begin, begin + run, scaled, init, key);
    }
  });
}

at::Tensor initial_values(const Parameter& parameter, uint64_t seed) {
  at::Tensor values = at::empty(parameter.shape, at::kFloat);
  const std::vector<int64_t> start(parameter.shape.size(), 0);
  fill_initial(parameter, seed, start, parameter.shape, values.data_ptr<float>());
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
    // `part` is of the physical tensor; each of its rows is a part of a parameter.
    const spmd::FillPart fill = [&](const spmd::Part& part, void* out) {
      const size_t lead = p.stacked ? 1 : 0;
      const std::span<const int64_t> start = std::span(part.start).subspan(lead), size = std::span(part.size).subspan(lead);
      const int64_t elements = c10::multiply_integers(size.begin(), size.end());
      const int64_t first = p.stacked ? part.start[0] : 0, count = p.stacked ? part.size[0] : 1;
      for (int64_t row = 0; row < count; ++row) {
        fill_initial(parameters_[p.rows[static_cast<size_t>(first + row)]], seed, start, size, static_cast<float*>(out) + row * elements);
      }
    };
    p.weight->value = spmd::make_tensor(device, shape_of(p), at::kFloat, p.weight->axes, fill).set_requires_grad(true);
  }
}

void Parameters::allocate(at::Device device) {
  for (const Physical& p : physical_) {
    p.weight->value = spmd::zeros(device, shape_of(p), at::kFloat, p.weight->axes).set_requires_grad(true);
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
