#include "device/own_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "base/error.h"
#include "base/philox.h"
#include "device/edge.h"
#include "device/register.h"
#include "ops/kernel_call.h"

namespace flambeau::device {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Dims = std::vector<int64_t>;
using MaybeTensor = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

MaybeTensor maybe(const at::Tensor& tensor) { return tensor.defined() ? MaybeTensor(tensor) : std::nullopt; }

template <class Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  register_own_ops();  // the CPU's need no device
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// ---- on the CPU -----------------------------------------------------------------------------------------------------------------

at::Tensor dot_general_on_cpu(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef x_dims, at::IntArrayRef y_dims,
                              std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.value_or(x.scalar_type());
  return at::tensordot(x.to(type), y.to(dtype.value_or(y.scalar_type())), x_dims, y_dims);
}

c10::BFloat16 rounded(float x, uint32_t word) {
  if (!std::isfinite(x)) return x;
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + (word & 0xffff)) >> 16), c10::BFloat16::from_bits()};
}

at::Tensor stochastic_round_on_cpu(const at::Tensor& given, const at::Tensor& step, const at::Tensor& keys, int64_t draw) {
  if (given.scalar_type() != at::kFloat || keys.dim() != 1 || (keys.numel() > 1 && (given.dim() == 0 || given.size(0) != keys.numel())) ||
      keys.numel() == 0 || draw < 0 || draw > 3)
    raise<InvalidArgument>("[stochastic_round] expected float32, a key for all of it or one a row, and a draw of 0 to 3, got {} [{}] with "
                           "[{}] keys, and {}", c10::toString(given.scalar_type()), fmt::join(given.sizes(), ", "),
                           fmt::join(keys.sizes(), ", "), draw);
  const auto at_step = static_cast<uint64_t>(step.item<int64_t>());
  const at::Tensor x = given.contiguous(), out = at::empty(x.sizes(), at::kBFloat16), dense_keys = keys.contiguous();
  const float* from = x.const_data_ptr<float>();
  c10::BFloat16* to = out.data_ptr<c10::BFloat16>();
  const int64_t row = std::max<int64_t>(1, x.numel() / keys.numel());
  const int64_t* key = dense_keys.const_data_ptr<int64_t>();
  at::parallel_for(0, x.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<uint64_t>(i % row), own = static_cast<uint64_t>(key[i / row]);
      const philox::Block words = philox::encrypt({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                                   static_cast<uint32_t>(at_step), static_cast<uint32_t>(at_step >> 32)},
                                                  {static_cast<uint32_t>(own), static_cast<uint32_t>(own >> 32)});
      to[i] = rounded(from[i], words[static_cast<size_t>(draw)]);
    }
  });
  return out;
}

std::vector<at::Tensor> copies(at::TensorList tensors) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : tensors) results.push_back(tensor.clone());
  return results;
}

// ---- gradients ------------------------------------------------------------------------------------------------------------------

// The dimensions of a contraction's operand: those that it sums over, and those that are left, ascending.
struct Operand {
  Dims contracted, left;

  Operand(const at::Tensor& tensor, Dims dims) : contracted(std::move(dims)) {
    for (int64_t& d : contracted)
      if (d < 0) d += tensor.dim();
    for (int64_t d = 0; d < tensor.dim(); ++d)
      if (std::ranges::find(contracted, d) == contracted.end()) left.push_back(d);
  }
  // The order of contracted dimensions in the other operand: where contracted[i] stands among them, ascending.
  size_t rank_of(size_t i) const { return static_cast<size_t>(std::ranges::count_if(contracted, [&](int64_t d) { return d < contracted[i]; })); }
};

Dims range(int64_t begin, int64_t end) {
  Dims dims(static_cast<size_t>(end - begin));
  std::iota(dims.begin(), dims.end(), begin);
  return dims;
}

// A gradient's dimensions are what is left of `own`, beginning at `left_at`, and `other`'s contracted ones, ascending, from `contracted_at`.
at::Tensor in_order_of(const at::Tensor& gradient, const Operand& own, const Operand& other, int64_t left_at, int64_t contracted_at) {
  Dims order(own.left.size() + own.contracted.size());
  for (size_t i = 0; i < own.left.size(); ++i) order[static_cast<size_t>(own.left[i])] = left_at + static_cast<int64_t>(i);
  for (size_t i = 0; i < own.contracted.size(); ++i)
    order[static_cast<size_t>(own.contracted[i])] = contracted_at + static_cast<int64_t>(other.rank_of(i));
  return gradient.permute(order);
}

struct DotGeneral : torch::autograd::Function<DotGeneral> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y, at::IntArrayRef x_dims, at::IntArrayRef y_dims,
                            std::optional<at::ScalarType> dtype) {
    ctx->save_for_backward({x, y});
    ctx->saved_data["x_dims"] = x_dims.vec();
    ctx->saved_data["y_dims"] = y_dims.vec();
    const at::AutoDispatchBelowADInplaceOrView below;
    return dot_general(x, y, x_dims, y_dims, dtype);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &y = saved[1], &g = gradients[0];
    const Operand of_x(x, ctx->saved_data["x_dims"].toIntVector()), of_y(y, ctx->saved_data["y_dims"].toIntVector());
    const int64_t left = std::ssize(of_x.left);
    const auto like_g = [&](const at::Tensor& operand) { return operand.to(g.scalar_type()).conj(); };
    at::Tensor dx, dy;
    if (ctx->needs_input_grad(0)) {
      dx = dot_general(g, like_g(y), range(left, g.dim()), of_y.left).to(x.scalar_type());
      dx = in_order_of(dx, of_x, of_y, 0, left);
    }
    if (ctx->needs_input_grad(1)) {
      dy = dot_general(like_g(x), g, of_x.left, range(0, left)).to(y.scalar_type());
      dy = in_order_of(dy, of_y, of_x, std::ssize(of_x.contracted), 0);
    }
    return {dx, dy, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct Barrier : torch::autograd::Function<Barrier> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below;
    return optimization_barrier(tensors);
  }

  // The gradients, too, are computed together.
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    variable_list defined;
    for (const at::Tensor& g : gradients)
      if (g.defined()) defined.push_back(g);
    if (defined.empty()) return gradients;
    const variable_list ordered = optimization_barrier(defined);
    variable_list results;
    size_t next = 0;
    for (const at::Tensor& g : gradients) results.push_back(g.defined() ? ordered[next++] : at::Tensor());
    return results;
  }
};

// Both forms of attention: P says what they are called with beside the tensors.
template <class P>
struct Attention : torch::autograd::Function<Attention<P>> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const MaybeTensor& given, const P& parameters) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor documents = given.value_or(at::Tensor());
    const auto [output, logsumexp] = parameters.forward(query, key, value, documents);
    ctx->save_for_backward({query, key, value, documents, output, logsumexp});
    ctx->mark_non_differentiable({logsumexp});
    parameters.save(*ctx);
    return {output, logsumexp};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [dq, dk, dv] = P::saved(*ctx).backward(gradients[0], saved);
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

struct InBlocks {
  int64_t block_q, block_kv;

  std::array<at::Tensor, 2> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& documents) const {
    return causal_attention(q, k, v, documents, block_q, block_kv);
  }
  std::array<at::Tensor, 3> backward(const at::Tensor& gradient, const variable_list& s) const {
    return causal_attention_backward(gradient, s[0], s[1], s[2], s[3], s[4], s[5], block_q, block_kv);
  }
  void save(AutogradContext& ctx) const { ctx.saved_data["blocks"] = Dims{block_q, block_kv}; }
  static InBlocks saved(AutogradContext& ctx) {
    const Dims blocks = ctx.saved_data["blocks"].toIntVector();
    return {blocks[0], blocks[1]};
  }
};

struct ByKernels {
  std::string of_output, dq, dkv;

  std::array<at::Tensor, 2> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& documents) const {
    return flash_attention(q, k, v, documents, of_output, dq, dkv);
  }
  std::array<at::Tensor, 3> backward(const at::Tensor& gradient, const variable_list& s) const {
    return flash_attention_backward(gradient, s[0], s[1], s[2], s[3], s[4], s[5], dq, dkv);
  }
  void save(AutogradContext& ctx) const {
    ctx.saved_data["dq"] = dq;
    ctx.saved_data["dkv"] = dkv;
  }
  static ByKernels saved(AutogradContext& ctx) { return {{}, ctx.saved_data["dq"].toStringRef(), ctx.saved_data["dkv"].toStringRef()}; }
};

template <class P>
Two differentiable(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& documents, P parameters) {
  const variable_list results = Attention<P>::apply(query, key, value, documents, parameters);
  return {results[0], results[1]};
}

Two causal_attention_with_gradient(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& documents,
                                   int64_t block_q, int64_t block_kv) {
  return differentiable(query, key, value, documents, InBlocks{block_q, block_kv});
}

Two flash_attention_with_gradient(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& documents,
                                  std::string_view forward, std::string_view dq, std::string_view dkv) {
  return differentiable(query, key, value, documents, ByKernels{std::string(forward), std::string(dq), std::string(dkv)});
}

at::Tensor dot_general_with_gradient(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef x_dims, at::IntArrayRef y_dims,
                                     std::optional<at::ScalarType> dtype) {
  return DotGeneral::apply(x, y, x_dims, y_dims, dtype);
}

std::vector<at::Tensor> barrier_with_gradient(at::TensorList tensors) { return Barrier::apply(tensors); }

}  // namespace

void register_own_ops() {
  static const bool registered = [] {
    define_rows(ops::all_rows());
    define_rows(ops::kernel_rows());
    auto* cpu = new torch::Library(torch::Library::IMPL, "flambeau", c10::DispatchKey::CPU, __FILE__, __LINE__);  // for the process's life
    serve<"flambeau::dot_general", &dot_general_on_cpu>(*cpu);
    serve<"flambeau::stochastic_round", &stochastic_round_on_cpu>(*cpu);
    serve<"flambeau::optimization_barrier", &copies>(*cpu);
    auto* autograd = new torch::Library(torch::Library::IMPL, "flambeau", c10::DispatchKey::Autograd, __FILE__, __LINE__);
    autograd->impl("dot_general", TORCH_FN(dot_general_with_gradient));
    autograd->impl("optimization_barrier", TORCH_FN(barrier_with_gradient));
    autograd->impl("causal_attention", TORCH_FN(causal_attention_with_gradient));
    autograd->impl("flash_attention", TORCH_FN(flash_attention_with_gradient));
    for (const char* name : {"stochastic_round", "causal_attention_backward", "flash_attention_backward"})
      autograd->impl(name, torch::autograd::autogradNotImplementedFallback());
    return true;
  }();
  (void)registered;
}

at::Tensor dot_general(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef x_dims, at::IntArrayRef y_dims,
                       std::optional<at::ScalarType> dtype) {
  static const auto handle = op<at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, std::optional<at::ScalarType>)>(
      "flambeau::dot_general");
  return handle.call(x, y, x_dims, y_dims, dtype);
}

at::Tensor stochastic_round(const at::Tensor& x, const at::Tensor& step, const at::Tensor& keys, int64_t draw) {
  static const auto handle = op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t)>("flambeau::stochastic_round");
  return handle.call(x, step, keys, draw);
}

std::vector<at::Tensor> optimization_barrier(at::TensorList tensors) {
  static const auto handle = op<std::vector<at::Tensor>(at::TensorList)>("flambeau::optimization_barrier");
  return handle.call(tensors);
}

std::array<at::Tensor, 2> causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& documents, int64_t block_q, int64_t block_kv) {
  static const auto handle = op<Two(const at::Tensor&, const at::Tensor&, const at::Tensor&, const MaybeTensor&, int64_t, int64_t)>(
      "flambeau::causal_attention");
  const auto [output, logsumexp] = handle.call(query, key, value, maybe(documents), block_q, block_kv);
  return {output, logsumexp};
}

std::array<at::Tensor, 3> causal_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                    const at::Tensor& logsumexp, int64_t block_q, int64_t block_kv) {
  static const auto handle = op<Three(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const MaybeTensor&,
                                      const at::Tensor&, const at::Tensor&, int64_t, int64_t)>("flambeau::causal_attention_backward");
  const auto [dq, dk, dv] = handle.call(gradient, query, key, value, maybe(documents), output, logsumexp, block_q, block_kv);
  return {dq, dk, dv};
}

std::array<at::Tensor, 2> flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const at::Tensor& documents, const std::string& forward, const std::string& dq,
                                          const std::string& dkv) {
  static const auto handle = op<Two(const at::Tensor&, const at::Tensor&, const at::Tensor&, const MaybeTensor&, std::string_view,
                                    std::string_view, std::string_view)>("flambeau::flash_attention");
  const auto [output, logsumexp] = handle.call(query, key, value, maybe(documents), forward, dq, dkv);
  return {output, logsumexp};
}

std::array<at::Tensor, 3> flash_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                   const at::Tensor& logsumexp, const std::string& dq, const std::string& dkv) {
  static const auto handle = op<Three(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const MaybeTensor&,
                                      const at::Tensor&, const at::Tensor&, std::string_view, std::string_view)>(
      "flambeau::flash_attention_backward");
  const auto [dq_, dk, dv] = handle.call(gradient, query, key, value, maybe(documents), output, logsumexp, dq, dkv);
  return {dq_, dk, dv};
}

}  // namespace flambeau::device
