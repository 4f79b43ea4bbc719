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
#include "spmd/sharding_rules.h"

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
int64_t Stored::elements() const { return c10::multiply_integers(shape); }

void fill_initial(const Stored& stored, uint64_t seed, std::span<const int64_t> start, std::span<const int64_t> size, float* out) {
  const Init& init = stored.init;
  const size_t rank = stored.shape.size();
  FLAMBEAU_CHECK(start.size() == rank && size.size() == rank, "a part has the parameter's dimensions");
  const int64_t elements = c10::multiply_integers(size.begin(), size.end());
  if (elements == 0) return;
  if (init.kind != Init::Kind::Normal) {
    std::fill_n(out, elements, init.kind == Init::Kind::Ones ? 1.0f : 0.0f);
    return;
  }
  const int64_t scales = init.part_scale.empty() ? 1 : static_cast<int64_t>(init.part_scale.size());
  FLAMBEAU_CHECK(scales == 1 || scales == stored.shape.at(0), "part_scale has one entry an index of dimension 0");
  const int64_t scaled = std::max<int64_t>(1, stored.elements() / scales);
  const uint64_t key = hash_string(stored.draw_key(), seed);
  // Trailing dimensions that the part has whole make one run of consecutive elements.
  size_t outer = rank;
  int64_t run = 1;
  while (outer > 0 && size[outer - 1] == stored.shape[outer - 1]) run *= stored.shape[--outer];
  if (outer > 0) run *= size[--outer];
  at::parallel_for(0, elements / run, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t begin = 0, stride = stored.elements(), rest = i, count = elements / run;
      for (size_t d = 0; d < rank; ++d) {
        stride /= stored.shape[d];
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

at::Tensor initial_values(const Stored& stored, uint64_t seed) {
  at::Tensor values = at::empty(stored.shape, at::kFloat);
  const std::vector<int64_t> start(stored.shape.size(), 0);
  fill_initial(stored, seed, start, stored.shape, values.data_ptr<float>());
  return values;
}

// ---- declaring --------------------------------------------------------------------------------------------------------------

void Parameters::put(Stored stored, Weight& member) {
  for (const Stored& s : stored_) FLAMBEAU_CHECK(s.name != stored.name, "names of stored tensors are unique");
  if (stored.traits.buffer) stored.traits.trainable = false;
  FLAMBEAU_CHECK(!stored.traits.trainable || stored.traits.dtype == at::kFloat, "what is trained is float32");
  stored.physical = physical_.size();
  physical_.push_back({&member, {stored_.size()}});
  stored_.push_back(std::move(stored));
}

void Parameters::add(std::string name, Weight& member, std::vector<int64_t> shape, Init init, Traits traits, std::string key) {
  parameters_.push_back({.name = name, .shape = shape, .stored = stored_.size()});
  put({.name = std::move(name), .key = std::move(key), .shape = std::move(shape), .init = std::move(init), .traits = traits,
       .parameters = {parameters_.size() - 1}}, member);
}

void Parameters::add_fused(std::string name, Weight& member, std::vector<int64_t> shape, int64_t dim, std::vector<FusedPart> parts,
                           Init init, Traits traits) {
  Stored stored{.name = std::move(name), .shape = std::move(shape), .init = std::move(init), .traits = traits, .fused_dim = dim};
  int64_t begin = 0;
  for (FusedPart& part : parts) {
    stored.parameters.push_back(parameters_.size());
    parameters_.push_back({.name = std::move(part.name), .shape = std::move(part.shape), .stored = stored_.size(), .begin = begin,
                           .length = part.length});
    begin += part.length;
  }
  FLAMBEAU_CHECK(begin == stored.shape.at(static_cast<size_t>(dim)), "parts make up the fused dimension");
  put(std::move(stored), member);
}

void Parameters::set_axes(std::span<const AxesRule> rules) {
  for (Stored& s : stored_) {
    std::vector<const AxesRule*> found;
    for (const AxesRule& rule : rules) {
      if (matches(rule.pattern, s.name)) found.push_back(&rule);
    }
    if (found.size() != 1) {
      raise<InvalidArgument>("[axes] expected one rule for parameter {}, got {}{}; each parameter's axes stand in one row of the "
                             "model's table", s.name, found.size(), found.empty() ? "" : ", of them " + found[1]->pattern);
    }
    if (found[0]->axes.size() != s.shape.size()) {
      raise<InvalidArgument>("[axes] expected one axis a dimension of {}, which has {}, got {} in the rule {}; name those that "
                             "are never split \"\"", s.name, s.shape.size(), found[0]->axes.size(), found[0]->pattern);
    }
    s.axes = found[0]->axes;
    FLAMBEAU_CHECK(!physical_[s.physical].stacked, "axes are set before layers are stacked");
    physical_[s.physical].weight->axes = s.axes;
  }
}

void Parameters::stack(std::span<Weight* const> members, Weight& stacked) {
  Physical whole{&stacked, {}, true};
  size_t place = physical_.size();
  for (Weight* member : members) {
    const auto found = std::ranges::find_if(physical_, [&](const Physical& p) { return p.weight == member; });
    FLAMBEAU_CHECK(found != physical_.end() && !found->stacked && !member->value.defined(),
                   "members are stacked once, before they have values");
    const Stored &first = stored_[whole.rows.empty() ? found->rows[0] : whole.rows[0]], &s = stored_[found->rows[0]];
    if (s.shape != first.shape || s.axes != first.axes || s.traits != first.traits) {
      raise<InvalidArgument>("[stack] expected layers of equal shapes, all trained or all frozen, got {} [{}] and {} [{}]; set model.scan = "
                             "false", spoken_name(first), fmt::join(first.shape, ", "), spoken_name(s), fmt::join(s.shape, ", "));
    }
    place = std::min(place, static_cast<size_t>(found - physical_.begin()));
    whole.rows.push_back(found->rows[0]);
  }
  stacked.axes = stored_[whole.rows.at(0)].axes;
  stacked.axes.insert(stacked.axes.begin(), "layers");
  physical_[place] = std::move(whole);
  std::erase_if(physical_, [&](const Physical& p) { return std::ranges::count(members, p.weight) != 0; });
  for (size_t i = 0; i < physical_.size(); ++i) {
    for (size_t row = 0; row < physical_[i].rows.size(); ++row) {
      stored_[physical_[i].rows[row]].physical = i;
      stored_[physical_[i].rows[row]].row = row;
    }
  }
}

void Parameters::freeze(const std::function<bool(const std::string& name)>& chosen, at::ScalarType dtype) {
  for (Stored& s : stored_) {
    const auto count = std::ranges::count_if(s.parameters, [&](size_t i) { return chosen(parameters_[i].name); });
    if (count == 0) continue;
    if (count < std::ssize(s.parameters)) {
      raise<InvalidArgument>("[freeze] expected all or none of {}, which are one tensor, got {} of them; choose all or none",
                             spoken_name(s), count);
    }
    FLAMBEAU_CHECK(!physical_[s.physical].stacked && !physical_[s.physical].weight->value.defined(),
                   "parameters are frozen before they are stacked and have values");
    s.traits.trainable = false;
    s.traits.dtype = dtype;
  }
}

// ---- values -----------------------------------------------------------------------------------------------------------------

void Parameters::initialize(uint64_t seed, at::Device device) {
  for (const Physical& p : physical_) {
    // `part` is of the physical tensor; each of its rows is a part of a stored one.
    const auto fill = [&](const spmd::Part& part, float* out) {
      const size_t lead = p.stacked ? 1 : 0;
      const std::span<const int64_t> start = std::span(part.start).subspan(lead), size = std::span(part.size).subspan(lead);
      const int64_t elements = c10::multiply_integers(size.begin(), size.end());
      const int64_t first = p.stacked ? part.start[0] : 0, count = p.stacked ? part.size[0] : 1;
      for (int64_t row = 0; row < count; ++row)
        fill_initial(stored_[p.rows[static_cast<size_t>(first + row)]], seed, start, size, out + row * elements);
    };
    const at::ScalarType dtype = traits(p).dtype;
    const spmd::FillPart fill_as_stored = [&](const spmd::Part& part, void* out) {
      if (dtype == at::kFloat) return fill(part, static_cast<float*>(out));
      at::Tensor wide = at::empty(part.size, at::kFloat);
      fill(part, wide.data_ptr<float>());
      at::from_blob(out, part.size, dtype).copy_(wide);
    };
    p.weight->value = spmd::make_tensor(device, shape_of(p), dtype, p.weight->axes, fill_as_stored).set_requires_grad(traits(p).trainable);
  }
}

void Parameters::allocate(at::Device device) {
  for (const Physical& p : physical_)
    p.weight->value = spmd::zeros(device, shape_of(p), traits(p).dtype, p.weight->axes).set_requires_grad(traits(p).trainable);
}

int64_t Parameters::elements() const {
  int64_t n = 0;
  for (const Stored& s : stored_) n += s.traits.buffer ? 0 : s.elements();
  return n;
}

int64_t Parameters::trainable_elements() const {
  int64_t n = 0;
  for (const Stored& s : stored_) n += s.traits.trainable ? s.elements() : 0;
  return n;
}

std::vector<at::Tensor> Parameters::tensors() const {
  std::vector<at::Tensor> out;
  out.reserve(physical_.size());
  for (const Physical& p : physical_) out.push_back(p.weight->value);
  return out;
}

std::vector<at::Tensor> Parameters::trainable_tensors() const {
  std::vector<at::Tensor> out;
  for (const Physical& p : physical_) {
    if (traits(p).trainable) out.push_back(p.weight->value);
  }
  return out;
}

std::vector<at::Tensor> Parameters::like_physical(std::span<const at::Tensor> of_trainable) const {
  std::vector<at::Tensor> out;
  size_t next = 0;
  for (const Physical& p : physical_) out.push_back(traits(p).trainable ? of_trainable[next++] : at::Tensor());
  FLAMBEAU_CHECK(next == of_trainable.size(), "one tensor for each that is trained");
  return out;
}

// ---- names ------------------------------------------------------------------------------------------------------------------

std::string Parameters::spoken_name(const Stored& stored) const {
  std::vector<std::string> names;
  for (const size_t i : stored.parameters) names.push_back(parameters_[i].name);
  if (names.size() == 1) return names.front();
  // What they share in front and behind, by whole words between dots.
  const std::string first = names.front(), last = names.back();
  size_t begin = 0, end = 0;
  while (begin < std::min(first.size(), last.size()) && first[begin] == last[begin]) ++begin;
  while (begin > 0 && first[begin - 1] != '.') --begin;
  while (end < std::min(first.size(), last.size()) - begin && first[first.size() - 1 - end] == last[last.size() - 1 - end]) ++end;
  while (end > 0 && first[first.size() - end] != '.') --end;
  const std::string tail = first.substr(first.size() - end);
  for (std::string& name : names) name = name.substr(begin, name.size() - begin - end);
  return fmt::format("{}{{{}}}{}", first.substr(0, begin), fmt::join(names, ","), tail);
}

// The number that differs between the rows becomes *.
std::string Parameters::spoken_name(const Physical& physical) const {
  const std::string first = spoken_name(stored_[physical.rows.front()]), last = spoken_name(stored_[physical.rows.back()]);
  if (first == last) return first;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t begin = 0, end = first.size();
  while (first[begin] == last[begin]) ++begin;
  while (begin > 0 && is_digit(first[begin - 1])) --begin;
  for (size_t i = last.size(); end > begin && i > begin && first[end - 1] == last[i - 1]; --i) --end;
  while (end < first.size() && is_digit(first[end])) ++end;
  return first.substr(0, begin) + '*' + first.substr(end);
}

// ---- from one view to the other ---------------------------------------------------------------------------------------------

at::Tensor Parameters::part_of(const at::Tensor& stored_value, const Parameter& parameter) const {
  if (!parameter.is_part()) return stored_value;
  return stored_value.narrow(stored_[parameter.stored].fused_dim, parameter.begin, parameter.length).reshape(parameter.shape);
}

std::vector<at::Tensor> Parameters::rows_of(const std::vector<at::Tensor>& like_physical) const {
  FLAMBEAU_CHECK(like_physical.size() == physical_.size(), "one tensor a physical tensor");
  std::vector<at::Tensor> out(parameters_.size());
  for (size_t i = 0; i < physical_.size(); ++i) {
    const Physical& p = physical_[i];
    if (!like_physical[i].defined()) continue;
    const bool apart = p.stacked || stored_[p.rows.front()].parameters.size() > 1;
    const at::Tensor all = apart ? like_physical[i].detach().cpu() : like_physical[i].detach();
    for (size_t row = 0; row < p.rows.size(); ++row) {
      const at::Tensor value = p.stacked ? all.select(0, static_cast<int64_t>(row)) : all;
      for (const size_t parameter : stored_[p.rows[row]].parameters) out[parameter] = part_of(value, parameters_[parameter]);
    }
  }
  return out;
}

// The stored tensor of its parts' values, float32 on the CPU.
at::Tensor Parameters::whole_of(const Stored& stored, const std::function<at::Tensor(size_t parameter)>& value) const {
  if (stored.parameters.size() == 1) {
    const at::Tensor only = value(stored.parameters.front());
    return only.defined() ? only : at::zeros(stored.shape, at::kFloat);
  }
  at::Tensor whole = at::zeros(stored.shape, at::kFloat);
  for (const size_t i : stored.parameters) {
    const at::Tensor part = value(i);
    at::Tensor place = whole.narrow(stored.fused_dim, parameters_[i].begin, parameters_[i].length);
    if (part.defined()) place.copy_(part.reshape(place.sizes()));
  }
  return whole;
}

void Parameters::assign(const std::vector<at::Tensor>& like_physical, const std::function<at::Tensor(size_t parameter)>& value) const {
  FLAMBEAU_CHECK(like_physical.size() == physical_.size(), "one tensor a physical tensor");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < physical_.size(); ++i) {
    const Physical& p = physical_[i];
    if (!like_physical[i].defined()) continue;
    const auto values = [&](size_t row) { return whole_of(stored_[p.rows[row]], value); };
    like_physical[i].copy_(p.stacked ? stack_rows(p.rows.size(), values) : values(0));
  }
}

std::vector<int64_t> Parameters::shape_of(const Physical& physical) const {
  std::vector<int64_t> shape = stored_[physical.rows[0]].shape;
  if (physical.stacked) shape.insert(shape.begin(), static_cast<int64_t>(physical.rows.size()));
  return shape;
}

}  // namespace flambeau::nn
