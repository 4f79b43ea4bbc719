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

bool contains(const MeshAxes& axes, const std::string& axis) { return std::ranges::find(axes, axis) != axes.end(); }

thread_local const ManualScope* t_scope = nullptr;

}  // namespace

std::vector<hlo::MeshAxis> Degrees::axes() const {
  return {{"replicate", replicate}, {"shard", shard}, {"context", context}, {"tensor", tensor}, {"expert", expert}};
}

int64_t Degrees::devices() const { return hlo::Mesh{axes()}.size(); }

int64_t Degrees::data_parallel() const { return ShardingRules(*this, standard_rules()).parts(AxisRole::Batch); }

std::vector<ShardingRule> standard_rules(bool sequence_parallel) {
  const MeshAxes sequence_block = sequence_parallel ? MeshAxes{"context", "tensor"} : MeshAxes{"context"};
  return {
      {"batch", {"replicate", "shard"}, AxisRole::Batch},
      {"sequence", {"context"}, AxisRole::Compute},
      {"sequence_block", sequence_block, AxisRole::Compute},
      {"embed", {"shard", "context"}, AxisRole::Storage},
      {"heads", {"tensor"}, AxisRole::Compute},
      {"kv_heads", {"tensor"}, AxisRole::Compute},
      {"ffn", {"tensor"}, AxisRole::Compute},
      {"vocab", {"tensor"}, AxisRole::Compute},
      {"experts", {"expert"}, AxisRole::Compute},
  };
}

ShardingRules::ShardingRules(Degrees degrees, std::vector<ShardingRule> rules) : degrees_(degrees), rules_(std::move(rules)) {
  for (const hlo::MeshAxis& axis : degrees.axes()) {
    if (axis.size < 1) raise<InvalidArgument>("[mesh] expected a degree of at least 1 for the axis {}, got {}", axis.name, axis.size);
    if (axis.size == 1) continue;
    mesh_.axes.push_back(axis);
    axes_.push_back(axis.name);
  }
  for (ShardingRule& rule : rules_) std::erase_if(rule.axes, [&](const std::string& axis) { return !contains(axes_, axis); });
}

ShardingRules ShardingRules::without(const MeshAxes& axes) const {
  ShardingRules result = *this;
  const auto is_left_out = [&](const std::string& axis) { return contains(axes, axis); };
  std::erase_if(result.axes_, is_left_out);
  for (ShardingRule& rule : result.rules_) std::erase_if(rule.axes, is_left_out);
  return result;
}

const ShardingRule* ShardingRules::find(const std::string& logical_axis) const {
  const auto found = std::ranges::find(rules_, logical_axis, &ShardingRule::logical_axis);
  return found == rules_.end() ? nullptr : &*found;
}

MeshAxes ShardingRules::axes_of(const std::string& logical_axis) const {
  const ShardingRule* rule = find(logical_axis);
  return rule ? rule->axes : MeshAxes();
}

int64_t ShardingRules::parts(const std::string& logical_axis) const { return hlo::axes_size(mesh_, axes_of(logical_axis)); }

MeshAxes ShardingRules::axes_of(AxisRole role) const {
  MeshAxes result;
  for (const std::string& axis : axes_) {
    const auto has_role = [&](const ShardingRule& rule) { return rule.role == role && contains(rule.axes, axis); };
    if (std::ranges::any_of(rules_, has_role)) result.push_back(axis);
  }
  return result;
}

int64_t ShardingRules::parts(AxisRole role) const { return hlo::axes_size(mesh_, axes_of(role)); }

hlo::Sharding ShardingRules::sharding(const Axes& axes) const {
  hlo::Sharding sharding;
  MeshAxes used;
  for (const std::string& logical : axes) {
    sharding.dims.emplace_back();
    for (const std::string& axis : axes_of(logical)) {
      if (contains(used, axis)) continue;
      used.push_back(axis);
      sharding.dims.back().axes.push_back(axis);
    }
  }
  return sharding;
}

hlo::Sharding ShardingRules::gathered(const Axes& axes) const {
  hlo::Sharding result = sharding(axes);
  for (size_t d = 0; d < axes.size(); ++d) {
    const ShardingRule* rule = find(axes[d]);
    if (rule && rule->role != AxisRole::Compute) result.dims[d].axes.clear();
  }
  return result;
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

void use_sharding_rules(std::optional<ShardingRules> rules) {
  const bool has_mesh = rules && rules->degrees().devices() > 1;
  runtime::Engine::get().set_mesh(has_mesh ? std::optional(rules->mesh()) : std::nullopt);
  active() = has_mesh ? std::make_unique<const ShardingRules>(std::move(*rules)) : nullptr;
}

const ShardingRules* sharding_rules() { return t_scope ? t_scope->rules() : active().get(); }

ManualScope::ManualScope(const MeshAxes& axes) : outer_(t_scope) {
  const ShardingRules* rules = sharding_rules();
  FLAMBEAU_CHECK(rules, "the axes of a manual computation are some of those that are left");
  axes_ = axes;
  if (outer_) axes_.insert(axes_.end(), outer_->axes_.begin(), outer_->axes_.end());
  if (ShardingRules left = rules->without(axes); !left.axes().empty()) rules_ = std::move(left);
  t_scope = this;
}

ManualScope::~ManualScope() { t_scope = outer_; }

const ManualScope* ManualScope::current() { return t_scope; }

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
