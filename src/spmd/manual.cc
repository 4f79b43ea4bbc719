#include "spmd/manual.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "device/device.h"
#include "hlo/sharding.h"
#include "runtime/internal_ops.h"
#include "runtime/manual.h"
#include "spmd/sharding_rules.h"

namespace flambeau::spmd {
namespace {

using hlo::Sharding;
using runtime::ManualSpec;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t size_of(const MeshAxes& axes) {
  const runtime::DeviceMesh* mesh = runtime::Engine::get().mesh();
  if (!mesh) raise<InvalidArgument>("[manual] expected a mesh, got one device; use the single-device code there");
  if (const std::string fault = hlo::sharding_fault({{}, axes}, mesh->mesh, 0); !fault.empty()) raise<InvalidArgument>("[manual] {}", fault);
  return hlo::axes_size(mesh->mesh, axes);
}

bool contains(const MeshAxes& axes, const std::string& axis) { return std::ranges::find(axes, axis) != axes.end(); }

// The axes of a computation that is asked for over `asked`, in the order of the mesh.
MeshAxes checked_axes(const std::optional<MeshAxes>& asked) {
  const ShardingRules* rules = sharding_rules();
  if (!rules && ManualScope::current())
    raise<InvalidArgument>("[manual] expected an axis of the mesh that no manual computation around this one is over, got none; give that one fewer axes");
  if (!rules) raise<InvalidArgument>("[manual] expected a mesh, got one device; use the single-device code there");
  if (!asked) return rules->axes();
  MeshAxes axes;
  for (const std::string& axis : rules->axes())
    if (contains(*asked, axis)) axes.push_back(axis);
  if (axes.empty() || axes.size() != asked->size())
    raise<InvalidArgument>("[manual] expected axes that are left, each once, of {}, got {}", fmt::join(rules->axes(), ", "),
                           asked->empty() ? "none" : fmt::format("{}", fmt::join(*asked, ", ")));
  return axes;
}

// The axes of a computation that split no dimension.
MeshAxes axes_left(const MeshAxes& axes, const Sharding& sharding) {
  MeshAxes left = axes;
  const MeshAxes used = axes_used(sharding);
  std::erase_if(left, [&](const std::string& axis) { return contains(used, axis); });
  return left;
}

at::Tensor global_tensor(const std::shared_ptr<runtime::Storage>& storage, const hlo::Type& local, const Sharding& sharding) {
  hlo::Type type = local;
  for (size_t d = 0; d < sharding.dims.size(); ++d) type.dims[d] *= size_of(sharding.dims[d].axes);
  return device::make_tensor(storage, type);
}

std::vector<ManualSpec> specs(const variable_list& tensors, const std::vector<Sharding>& shardings) {
  if (tensors.size() != shardings.size())
    raise<InvalidArgument>("[manual] expected one layout a tensor, got {} for {}", shardings.size(), tensors.size());
  std::vector<ManualSpec> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!device::is_tpu(tensors[i]))
      raise<InvalidArgument>("[manual] expected tpu tensors, got one on {}", tensors[i].device().str());
    result.push_back({device::ref_of(tensors[i]), shardings[i]});
  }
  return result;
}

struct ManualCall {
  MeshAxes axes;
  const std::vector<Sharding>*in, *out;
  const ManualBody* body;
};

// The local parts as leaves of autograd.
variable_list leaves_of(const runtime::ManualRecording& recording, const variable_list& inputs) {
  variable_list leaves;
  for (size_t i = 0; i < inputs.size(); ++i)
    leaves.push_back(device::make_tensor(recording.local()[i], recording.local_types()[i]).requires_grad_(inputs[i].requires_grad()));
  return leaves;
}

struct GradientHolder : torch::CustomClassHolder {
  std::unique_ptr<runtime::ManualGradient> gradient;
  std::vector<hlo::Type> result_types;   // global
  std::vector<hlo::Type> input_types;    // global
  std::vector<bool> wanted, summed;      // of the inputs; whether parts are summed over devices that hold the same input
  std::vector<bool> differentiable;      // of the results
};

// Each device computes the gradient of its own share: of a result that several devices hold, each is responsible for an equal part of
// it, and the gradient of an input that several devices hold is the sum of theirs. This holds whatever the body does.
struct Manual : torch::autograd::Function<Manual> {
  static variable_list forward(AutogradContext* ctx, const ManualCall& call, at::TensorList list) {
    const variable_list inputs = list.vec();
    runtime::ManualRecording recording(call.axes, specs(inputs, *call.in));
    const variable_list leaves = leaves_of(recording, inputs);
    variable_list results;
    {
      const at::AutoGradMode enabled(true);
      const ManualScope scope(call.axes);
      results = (*call.body)(leaves);
    }
    const std::vector<ManualSpec> result_specs = specs(results, *call.out);

    auto holder = c10::make_intrusive<GradientHolder>();
    variable_list wanted, outputs, cotangents;
    for (const at::Tensor& leaf : leaves)
      if (leaf.requires_grad()) wanted.push_back(leaf);
    std::vector<hlo::Type> local_types;
    for (size_t i = 0; i < results.size(); ++i) {
      local_types.push_back(device::ref_of(results[i]).type());
      holder->differentiable.push_back(results[i].requires_grad());
      if (!results[i].requires_grad()) continue;
      const at::Tensor cotangent = device::make_tensor(recording.add_cotangent(local_types[i], (*call.out)[i]), local_types[i]);
      outputs.push_back(results[i]);
      cotangents.push_back(cotangent / static_cast<double>(size_of(axes_left(call.axes, (*call.out)[i]))));
    }
    variable_list gradients(wanted.size());
    const ManualScope scope(call.axes);
    if (!outputs.empty()) gradients = torch::autograd::grad(outputs, wanted, cotangents, false, false, /*allow_unused=*/true);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (!gradients[i].defined()) gradients[i] = at::zeros_like(wanted[i]).detach();

    std::vector<Sharding> gradient_shardings;
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      holder->wanted.push_back(leaves[i].requires_grad());
      holder->input_types.push_back(device::ref_of(inputs[i]).type());
      const MeshAxes left = axes_left(call.axes, (*call.in)[i]);
      holder->summed.push_back(!left.empty());
      if (!leaves[i].requires_grad()) continue;
      Sharding sharding = runtime::with_rank((*call.in)[i], inputs[i].dim());
      if (!left.empty()) {
        gradients[next] = gradients[next].unsqueeze(0);
        sharding.dims.insert(sharding.dims.begin(), {.axes = left});
      }
      gradient_shardings.push_back(std::move(sharding));
      ++next;
    }
    runtime::ManualRecording::Joint joint = recording.finish_joint(result_specs, specs(gradients, gradient_shardings));
    variable_list out, constants;
    for (size_t i = 0; i < results.size(); ++i) {
      out.push_back(global_tensor(joint.results[i], local_types[i], (*call.out)[i]));
      holder->result_types.push_back(device::ref_of(out.back()).type());
      if (!holder->differentiable[i]) constants.push_back(out.back());
    }
    ctx->mark_non_differentiable(constants);
    holder->gradient = std::move(joint.gradient);
    ctx->saved_data["gradient"] = c10::IValue::make_capsule(holder);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto holder = c10::static_intrusive_pointer_cast<GradientHolder>(ctx->saved_data["gradient"].toCapsule());
    variable_list kept;
    std::vector<runtime::TensorRef> cotangents;
    for (size_t i = 0; i < holder->result_types.size(); ++i) {
      if (!holder->differentiable[i]) continue;
      const hlo::Type& type = holder->result_types[i];
      const at::TensorOptions options = at::TensorOptions().dtype(device::scalar_type_of(type.dtype)).device(device::tpu());
      kept.push_back(gradients[i].defined() ? gradients[i] : at::zeros(type.dims, options));
      cotangents.push_back(device::ref_of(kept.back()));
    }
    const auto storages = holder->gradient->run(cotangents);
    variable_list result{at::Tensor()};  // the call itself
    size_t next = 0;
    for (size_t i = 0; i < holder->wanted.size(); ++i) {
      if (!holder->wanted[i]) {
        result.emplace_back();
        continue;
      }
      hlo::Type type = holder->input_types[i];
      const auto& storage = storages[next++];
      if (!holder->summed[i]) {
        result.push_back(device::make_tensor(storage, type));
        continue;
      }
      type.dims.insert(type.dims.begin(), storage->nbytes() / std::max<int64_t>(1, type.bytes()));
      result.push_back(device::make_tensor(storage, type).sum(0));
    }
    return result;
  }
};

template <class... Details>
at::Tensor collective(const ops::Row& row, const at::Tensor& x, const MeshAxes& axes, Details... details) {
  const ManualScope* scope = ManualScope::current();
  if (!scope) raise<InvalidArgument>("[collective] expected a call inside of a manual computation, got one outside; there the partitioner communicates");
  for (const std::string& axis : axes)
    if (!contains(scope->axes(), axis))
      raise<InvalidArgument>("[collective] expected axes that manual computations around it are over ({}), got {}; the partitioner communicates "
                             "over the others", fmt::join(scope->axes(), ", "), axis);
  runtime::CallArgument arguments[] = {device::ref_of(x), runtime::encode_axes(axes), runtime::CallArgument(std::move(details))...};
  return device::call(row, arguments);
}

struct AllReduce : torch::autograd::Function<AllReduce> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const MeshAxes& axes) {
    ctx->saved_data["axes"] = axes;
    return collective(runtime::kAllReduce, x, axes, std::string("sum"));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {all_reduce_sum(gradients[0], ctx->saved_data["axes"].to<MeshAxes>()), at::Tensor()};
  }
};

struct AllToAll : torch::autograd::Function<AllToAll> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const MeshAxes& axes, int64_t split_dim, int64_t concat_dim) {
    ctx->saved_data["axes"] = axes;
    ctx->saved_data["dims"] = std::vector<int64_t>{split_dim, concat_dim};
    return collective(runtime::kAllToAll, x, axes, split_dim, concat_dim);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const std::vector<int64_t> dims = ctx->saved_data["dims"].toIntVector();
    return {all_to_all(gradients[0], ctx->saved_data["axes"].to<MeshAxes>(), dims[1], dims[0]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct CollectivePermute : torch::autograd::Function<CollectivePermute> {
  // `pairs`: source, target, source, target, ...
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const MeshAxes& axes, const std::vector<int64_t>& pairs) {
    ctx->saved_data["axes"] = axes;
    ctx->saved_data["pairs"] = pairs;
    return collective(runtime::kCollectivePermute, x, axes, hlo::Dims(pairs));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    std::vector<int64_t> inverse = ctx->saved_data["pairs"].toIntVector();
    for (size_t i = 0; i < inverse.size(); i += 2) std::swap(inverse[i], inverse[i + 1]);
    return {CollectivePermute::apply(gradients[0], ctx->saved_data["axes"].to<MeshAxes>(), inverse), at::Tensor(), at::Tensor()};
  }
};

// All-gather and reduce-scatter are each other's transposes.
template <bool kGather>
struct Transposed : torch::autograd::Function<Transposed<kGather>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const MeshAxes& axes, int64_t dim) {
    ctx->saved_data["axes"] = axes;
    ctx->saved_data["dim"] = dim;
    return collective(kGather ? runtime::kAllGather : runtime::kReduceScatter, x, axes, dim);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const MeshAxes axes = ctx->saved_data["axes"].to<MeshAxes>();
    const int64_t dim = ctx->saved_data["dim"].toInt();
    return {kGather ? reduce_scatter(gradients[0], axes, dim) : all_gather(gradients[0], axes, dim), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> manual(const std::vector<at::Tensor>& inputs, const std::vector<Sharding>& in, const std::vector<Sharding>& out,
                               const ManualBody& body, std::optional<MeshAxes> axes) {
  const MeshAxes over = checked_axes(axes);
  const bool has_gradient =
      at::GradMode::is_enabled() && std::ranges::any_of(inputs, [](const at::Tensor& t) { return t.requires_grad(); });
  if (has_gradient) return Manual::apply(ManualCall{over, &in, &out, &body}, at::TensorList(inputs));
  runtime::ManualRecording recording(over, specs(inputs, in));
  variable_list local;
  for (size_t i = 0; i < inputs.size(); ++i) local.push_back(device::make_tensor(recording.local()[i], recording.local_types()[i]));
  const variable_list results = [&] {
    const ManualScope scope(over);
    return body(local);
  }();
  std::vector<hlo::Type> types;
  for (const at::Tensor& result : results) types.push_back(device::ref_of(result).type());
  const auto storages = recording.finish(specs(results, out));
  variable_list tensors;
  for (size_t i = 0; i < storages.size(); ++i) tensors.push_back(global_tensor(storages[i], types[i], out[i]));
  return tensors;
}

at::Tensor all_reduce_sum(const at::Tensor& x, const MeshAxes& axes) { return axes.empty() ? x : AllReduce::apply(x, axes); }

at::Tensor all_reduce_max(const at::Tensor& x, const MeshAxes& axes) {
  const at::Tensor detached = x.detach();
  return axes.empty() ? detached : collective(runtime::kAllReduce, detached, axes, std::string("max"));
}

at::Tensor all_gather(const at::Tensor& x, const MeshAxes& axes, int64_t dim) {
  return axes.empty() ? x : Transposed<true>::apply(x, axes, dim);
}

at::Tensor reduce_scatter(const at::Tensor& x, const MeshAxes& axes, int64_t dim) {
  return axes.empty() ? x : Transposed<false>::apply(x, axes, dim);
}

at::Tensor all_to_all(const at::Tensor& x, const MeshAxes& axes, int64_t split_dim, int64_t concat_dim) {
  return axes.empty() ? x : AllToAll::apply(x, axes, split_dim, concat_dim);
}

at::Tensor collective_permute(const at::Tensor& x, const MeshAxes& axes, const DevicePairs& pairs) {
  std::vector<int64_t> flat;
  for (auto [source, target] : pairs) flat.insert(flat.end(), {source, target});
  return CollectivePermute::apply(x, axes, flat);
}

DevicePairs ring(const MeshAxes& axes, int64_t shift) {
  const int64_t size = size_of(axes);
  DevicePairs pairs;
  for (int64_t i = 0; i < size; ++i) pairs.emplace_back(i, ((i + shift) % size + size) % size);
  return pairs;
}

bool can_be_manual() { return sharding_rules() && runtime::Engine::current(); }

MeshAxes axes_used(const Sharding& sharding) {
  MeshAxes used;
  for (const Sharding::Dim& dim : sharding.dims) used.insert(used.end(), dim.axes.begin(), dim.axes.end());
  return used;
}

at::Tensor positions(const MeshAxes& axes) {
  return at::arange(size_of(axes), at::TensorOptions().dtype(at::kLong).device(device::tpu()));
}

Sharding sharding_of_positions(const MeshAxes& axes) { return {{{.axes = axes}}}; }

}  // namespace flambeau::spmd
