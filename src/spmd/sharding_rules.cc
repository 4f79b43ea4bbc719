#include "spmd/sharding_rules.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "base/error.h"
#include "device/device.h"
#include "hlo/sharding.h"

namespace flambeau::spmd {
namespace {

std::unique_ptr<const ShardingRules>& active() {
  static auto* rules = new std::unique_ptr<const ShardingRules>;
  return *rules;
}

void fill_zeros(const std::vector<int64_t>& size, at::ScalarType dtype, void* out) {
  std::memset(out, 0, static_cast<size_t>(c10::multiply_integers(size)) * c10::elementSize(dtype));
}

bool splits_data(const std::string& axis) { return axis == "replicate" || axis == "shard" || axis == "context"; }

}  // namespace

Rules standard_rules(bool sequence_parallel) {
  Rules rules = {
      {"batch", {"replicate", "shard"}},
      {"sequence", {"context"}},
      {"sequence_block", {"context"}},
      {"embed", {"shard", "context"}},
      {"heads", {"tensor"}},
      {"kv_heads", {"tensor"}},
      {"ffn", {"tensor"}},
      {"vocab", {"tensor"}},
      {"experts", {"expert"}},
  };
  if (sequence_parallel) rules["sequence_block"].push_back("tensor");
  return rules;
}

ShardingRules::ShardingRules(Degrees degrees, Rules rules) : degrees_(degrees), rules_(std::move(rules)) {
  const std::pair<const char*, int64_t> axes[] = {{"replicate", degrees.replicate}, {"shard", degrees.shard},
                                                  {"context", degrees.context}, {"tensor", degrees.tensor},
                                                  {"expert", degrees.expert}};
  for (auto [name, size] : axes) {
    if (size < 1) raise<InvalidArgument>("[mesh] expected a degree of at least 1 for the axis {}, got {}", name, size);
    if (size > 1) mesh_.axes.push_back({name, size});
  }
  for (auto& [logical, names] : rules_)
    std::erase_if(names, [&](const std::string& name) {
      return std::ranges::none_of(mesh_.axes, [&](const hlo::MeshAxis& axis) { return axis.name == name; });
    });
}

std::vector<std::string> ShardingRules::axes_of(const std::string& logical) const {
  const auto found = rules_.find(logical);
  return found == rules_.end() ? std::vector<std::string>() : found->second;
}

int64_t ShardingRules::parts(const std::string& logical) const {
  return hlo::axes_size(mesh_, axes_of(logical));
}

hlo::Sharding ShardingRules::sharding(const Axes& axes) const {
  hlo::Sharding sharding;
  std::vector<std::string> used;
  for (const std::string& logical : axes) {
    sharding.dims.emplace_back();
    for (const std::string& axis : axes_of(logical)) {
      if (std::ranges::find(used, axis) != used.end()) continue;
      used.push_back(axis);
      sharding.dims.back().axes.push_back(axis);
    }
  }
  return sharding;
}

hlo::Sharding ShardingRules::sharding_where_it_divides(const Axes& axes, const std::vector<int64_t>& shape) const {
  hlo::Sharding result = sharding(axes);
  for (size_t d = 0; d < result.dims.size(); ++d) {
    int64_t parts = 1;
    std::erase_if(result.dims[d].axes, [&](const std::string& axis) {
      const int64_t size = hlo::axis_size(mesh_, axis);
      if (shape[d] % (parts * size) != 0) return true;
      parts *= size;
      return false;
    });
  }
  return result;
}

hlo::Sharding ShardingRules::gathered(const Axes& axes) const {
  hlo::Sharding result = sharding(axes);
  for (hlo::Sharding::Dim& dim : result.dims) std::erase_if(dim.axes, splits_data);
  return result;
}

void use_sharding_rules(std::optional<ShardingRules> rules) {
  const bool has_mesh = rules && rules->degrees().devices() > 1;
  runtime::Engine::get().set_mesh(has_mesh ? std::optional(rules->mesh()) : std::nullopt);
  active() = has_mesh ? std::make_unique<const ShardingRules>(std::move(*rules)) : nullptr;
}

const ShardingRules* sharding_rules() { return active().get(); }

at::Tensor make_tensor(at::Device device, const std::vector<int64_t>& shape, at::ScalarType dtype, const Axes& axes,
                       const FillPart& fill) {
  const hlo::Type type{device::dtype_of(dtype), shape};
  if (device.is_cpu()) {
    at::Tensor host = at::empty(shape, dtype);
    fill({std::vector<int64_t>(shape.size(), 0), shape}, host.data_ptr());
    return host;
  }
  const hlo::Sharding sharding = sharding_rules() ? sharding_rules()->sharding(axes) : hlo::Sharding{};
  const runtime::FillBox fill_box = [&](const runtime::Box& box, void* out) { fill({box.start, box.size}, out); };
  return device::make_tensor(runtime::Engine::get().make_sharded(type, sharding, fill_box), type);
}

at::Tensor place(const at::Tensor& host, const Axes& axes) {
  if (!sharding_rules() || host.numel() == 0) return host.to(device::tpu());
  const at::Tensor dense = host.contiguous();
  const hlo::Type type{device::dtype_of(host.scalar_type()), host.sizes().vec()};
  const hlo::Sharding sharding = sharding_rules()->sharding_where_it_divides(axes, type.dims);
  return device::make_tensor(runtime::Engine::get().make_sharded(type, sharding, dense.const_data_ptr()), type);
}

std::vector<bool> held(const std::string& logical, int64_t size) {
  std::vector<bool> held(static_cast<size_t>(size), !sharding_rules());
  if (!sharding_rules()) return held;
  const runtime::DeviceMesh& mesh = *runtime::Engine::get().mesh();
  const hlo::Sharding sharding = sharding_rules()->sharding_where_it_divides({logical}, {size});
  for (const int64_t position : mesh.positions) {
    const runtime::Box box = runtime::box_at(mesh.mesh, sharding, {size}, position);
    std::fill_n(held.begin() + box.start[0], box.size[0], true);
  }
  return held;
}

at::Tensor zeros(at::Device device, const std::vector<int64_t>& shape, at::ScalarType dtype, const Axes& axes) {
  return make_tensor(device, shape, dtype, axes, [&](const Part& part, void* out) { fill_zeros(part.size, dtype, out); });
}

at::Tensor zeros_like(const at::Tensor& tensor, at::ScalarType dtype) {
  const auto array = device::is_tpu(tensor) ? device::storage_of(tensor).held().array : nullptr;
  const runtime::DeviceMesh* const mesh = array ? array->mesh() : nullptr;
  if (!device::is_tpu(tensor) || (!mesh && !sharding_rules()))
    return at::zeros(tensor.sizes(), tensor.options().dtype(dtype).requires_grad(false));
  const hlo::Type type{device::dtype_of(dtype), tensor.sizes().vec()};
  const runtime::FillBox fill = [&](const runtime::Box& box, void* out) { fill_zeros(box.size, dtype, out); };
  const hlo::Sharding sharding = runtime::Engine::sharding_of(device::ref_of(tensor));
  return device::make_tensor(runtime::hold(type, runtime::Engine::get().devices().array(mesh, type, sharding, fill)), type);
}

}  // namespace flambeau::spmd
