#include "device/strides.h"

#include <algorithm>
#include <map>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/ops/empty_strided.h>

#include "device/arguments.h"

namespace flambeau::device {
namespace {

using hlo::Dims;
using Kind = StrideRule::Kind;

// Ops whose rule the tag `pointwise` does not tell.
const std::map<std::string_view, Kind>& named_rules() {
  using enum StrideRule::Kind;
  static const auto* rules = new std::map<std::string_view, Kind>{
      // Tagged, but made row-major by hand.
      {"aten::masked_fill", RowMajor},
      {"aten::pow.Scalar", RowMajor},
      // Not tagged, though TensorIterator runs them.
      {"aten::_prelu_kernel", Pointwise},
      {"aten::binary_cross_entropy", Pointwise},
      {"aten::binary_cross_entropy_backward", Pointwise},
      {"aten::binary_cross_entropy_with_logits", Pointwise},
      {"aten::elu_backward", Pointwise},
      {"aten::floor_divide", Pointwise},
      {"aten::hardswish", Pointwise},
      {"aten::hardtanh_backward", Pointwise},
      {"aten::huber_loss", Pointwise},
      {"aten::leaky_relu_backward", Pointwise},
      {"aten::log_sigmoid_backward", Pointwise},
      {"aten::mse_loss", Pointwise},
      {"aten::rsub", Pointwise},
      {"aten::smooth_l1_loss", Pointwise},
      {"aten::softplus_backward", Pointwise},
      // at::empty_like, or a clone that is then written to.
      {"aten::cauchy", Preserve},
      {"aten::exponential", Preserve},
      {"aten::fill", Preserve},
      {"aten::flip", Preserve},
      {"aten::full_like", Preserve},
      {"aten::geometric", Preserve},
      {"aten::index_fill", Preserve},
      {"aten::index_put", Preserve},
      {"aten::_index_put_impl", Preserve},
      {"aten::_unsafe_index_put", Preserve},
      {"aten::log_normal", Preserve},
      {"aten::native_dropout", Preserve},
      {"aten::normal_functional", Preserve},
      {"aten::put", Preserve},
      {"aten::random", Preserve},
      {"aten::sort", Preserve},
      {"aten::uniform", Preserve},
      {"aten::zero", Preserve},
      // Tensor::suggest_memory_format.
      {"aten::_fused_rms_norm", ChannelsLast},
      {"aten::cat", ChannelsLast},
      {"aten::constant_pad_nd", ChannelsLast},
      {"aten::native_group_norm", ChannelsLast},
      {"aten::roll", ChannelsLast},
      {"aten::stack", Stack},
      {"aten::glu", Halves},
      {"aten::index", Index},
      {"aten::_unsafe_index", Index},
  };
  return *rules;
}

// ---- the rules ----------------------------------------------------------------------------------------------------------------

Dims dims_of(at::IntArrayRef values) { return values.vec(); }

// What TensorIterator gives to a result that it allocates.
Dims iterated(const std::vector<at::Tensor>& operands) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(false);
  config.declare_static_dtype_and_device(at::kByte, at::kMeta).add_owned_output(at::Tensor());
  for (const at::Tensor& operand : operands) config.add_const_input(operand);
  return dims_of(config.build().output().strides());
}

Dims formatted(at::IntArrayRef sizes, c10::MemoryFormat format) {
  if (format == c10::MemoryFormat::ChannelsLast && sizes.size() == 4) return dims_of(c10::get_channels_last_strides_2d(sizes));
  if (format == c10::MemoryFormat::ChannelsLast3d && sizes.size() == 5) return dims_of(c10::get_channels_last_strides_3d(sizes));
  return {};
}

Dims preserved(const at::Tensor& self, c10::MemoryFormat format) {
  if (format != c10::MemoryFormat::Preserve) return formatted(self.sizes(), format);
  if (self.is_non_overlapping_and_dense()) return dims_of(self.strides());
  return dims_of(at::infer_dense_strides(self.sizes(), self.strides()));
}

// The format that the first one suggests, or that all of them do.
c10::MemoryFormat common_format(const std::vector<at::Tensor>& tensors, bool of_all) {
  const c10::MemoryFormat first = tensors.front().suggest_memory_format();
  const bool agree = std::ranges::all_of(tensors, [&](const at::Tensor& t) { return t.suggest_memory_format() == first; });
  return agree || !of_all ? first : c10::MemoryFormat::Contiguous;
}

Dims stacked(const std::vector<at::Tensor>& tensors, int64_t dim) {
  Dims sizes = dims_of(tensors.front().sizes());
  const auto rank = static_cast<int64_t>(sizes.size());
  if (dim < 0) dim += rank + 1;
  if (dim == rank) return {};
  const int64_t size = sizes[static_cast<size_t>(dim)];
  sizes[static_cast<size_t>(dim)] *= static_cast<int64_t>(tensors.size());
  Dims strides = formatted(sizes, common_format(tensors, true));
  if (!strides.empty()) strides.insert(strides.begin() + dim, strides[static_cast<size_t>(dim)] * size);
  return strides;
}

// x[.., i, j, ..] as PyTorch's kernel iterates over it: x with its indexed dimensions replaced by the indices' common ones, of stride
// 0, and the indices along these.
Dims indexed(const at::Tensor& self, const c10::IValue& list) {
  std::vector<at::Tensor> indices;
  for (const c10::IValue& item : list.toListRef()) indices.push_back(item.isTensor() ? item.toTensor() : at::Tensor());
  indices.resize(static_cast<size_t>(self.dim()));
  at::Tensor source = self;
  if (!at::native::hasContiguousSubspace(indices)) std::tie(source, indices) = at::native::transposeToFront(self, indices);
  std::vector<at::Tensor> given;
  int64_t before = 0, after = 0;
  Dims sizes, strides;
  for (int64_t d = 0; d < source.dim(); ++d) {
    if (const at::Tensor& index = indices[static_cast<size_t>(d)]; index.defined())
      given.push_back(index);
    else
      ++(given.empty() ? before : after);
  }
  const bool masks = std::ranges::any_of(given, [](const at::Tensor& index) { return !at::isIntegralType(index.scalar_type(), false); });
  if (given.empty() || masks) return {};
  const Dims common = dims_of(at::expand_outplace(given)[0].sizes());
  const auto copy = [&](int64_t begin, int64_t end) {
    sizes.insert(sizes.end(), source.sizes().begin() + begin, source.sizes().begin() + end);
    strides.insert(strides.end(), source.strides().begin() + begin, source.strides().begin() + end);
  };
  copy(0, before);
  sizes.insert(sizes.end(), common.begin(), common.end());
  strides.insert(strides.end(), common.size(), 0);
  copy(source.dim() - after, source.dim());
  const auto meta = [](const Dims& of_sizes, const Dims& of_strides) { return at::empty_strided(of_sizes, of_strides, at::device(at::kMeta)); };
  std::vector<at::Tensor> operands{meta(sizes, strides)};
  for (const at::Tensor& index : at::expand_outplace(given)) {
    Dims index_sizes(static_cast<size_t>(before), 1), index_strides(static_cast<size_t>(before), 0);
    index_sizes.insert(index_sizes.end(), index.sizes().begin(), index.sizes().end());
    index_strides.insert(index_strides.end(), index.strides().begin(), index.strides().end());
    index_sizes.resize(index_sizes.size() + static_cast<size_t>(after), 1);
    index_strides.resize(index_strides.size() + static_cast<size_t>(after), 0);
    operands.push_back(meta(index_sizes, index_strides));
  }
  return iterated(operands);
}

std::optional<Kind> named_rule(const c10::FunctionSchema& schema) {
  for (const std::string& name : {schema.name() + "." + schema.overload_name(), schema.name()})
    if (auto rule = named_rules().find(name); rule != named_rules().end()) return rule->second;
  return std::nullopt;
}

bool is_row_major(const at::Tensor& tensor) {
  int64_t stride = 1;
  for (int64_t d = tensor.dim(); d-- > 0;) {
    if (tensor.stride(d) != stride) return false;
    stride *= std::max<int64_t>(tensor.size(d), 1);
  }
  return true;
}

}  // namespace

StrideRule stride_rule(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  StrideRule rule;
  if (auto named = named_rule(schema))
    rule.kind = *named;
  else if (op.hasTag(at::Tag::pointwise))
    rule.kind = Kind::Pointwise;
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    if (schema.arguments()[i].name() == "memory_format") rule.memory_format = i;
  rule.of_all = schema.name() == "aten::cat";
  rule.number = schema.overload_name().find("Scalar") != std::string::npos && schema.name() != "aten::pow" && schema.name() != "aten::lerp";
  return rule;
}

bool may_permute(const StrideRule& rule, std::span<const c10::IValue> arguments) {
  if (rule.kind == Kind::RowMajor) return false;
  bool may = rule.memory_format && !arguments[*rule.memory_format].isNone();
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) { may |= !is_row_major(tensor); });
  return may;
}

std::vector<Dims> result_strides(const StrideRule& rule, std::span<const c10::IValue> arguments,
                                 std::span<const std::optional<hlo::Type>> types) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  std::vector<Dims> strides(types.size());
  if (tensors.empty()) return strides;
  Dims common;
  c10::MemoryFormat format = c10::MemoryFormat::Preserve;
  if (rule.memory_format && !arguments[*rule.memory_format].isNone()) format = arguments[*rule.memory_format].toMemoryFormat();
  switch (rule.kind) {
    case Kind::RowMajor: break;
    case Kind::Pointwise:
      if (rule.number) tensors.push_back(at::empty({}, at::device(at::kMeta)));
      common = iterated(tensors);
      break;
    case Kind::Preserve: common = preserved(tensors.front(), format); break;
    case Kind::ChannelsLast: format = common_format(tensors, rule.of_all); break;
    case Kind::Halves: common = iterated(tensors.front().chunk(2, arguments[1].toInt())); break;
    case Kind::Stack: common = stacked(tensors, arguments[1].toInt()); break;
    case Kind::Index: common = indexed(tensors.front(), arguments[1]); break;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (!types[i]) continue;
    const Dims& dims = types[i]->dims;
    const bool is_whole = dims == types[0]->dims && common.size() == dims.size();  // a loss may be reduced
    Dims wanted = rule.kind == Kind::ChannelsLast ? formatted(dims, format) : is_whole ? common : Dims();
    if (wanted != dims_of(c10::contiguous_strides(dims))) strides[i] = std::move(wanted);
  }
  return strides;
}

}  // namespace flambeau::device
