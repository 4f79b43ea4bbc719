// Element types, and tensors over storage records.
#include <ATen/ATen.h>

#include "base/error.h"
#include "device/allocator.h"
#include "device/arguments.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

constexpr std::pair<c10::ScalarType, DType> kTypes[] = {
    {c10::ScalarType::Bool, DType::Pred},         {c10::ScalarType::Char, DType::S8},
    {c10::ScalarType::Short, DType::S16},         {c10::ScalarType::Int, DType::S32},
    {c10::ScalarType::Long, DType::S64},          {c10::ScalarType::Byte, DType::U8},
    {c10::ScalarType::UInt16, DType::U16},        {c10::ScalarType::UInt32, DType::U32},
    {c10::ScalarType::UInt64, DType::U64},        {c10::ScalarType::Half, DType::F16},
    {c10::ScalarType::BFloat16, DType::BF16},     {c10::ScalarType::Float, DType::F32},
    {c10::ScalarType::Double, DType::F64},        {c10::ScalarType::ComplexFloat, DType::C64},
    {c10::ScalarType::ComplexDouble, DType::C128}, {c10::ScalarType::Float8_e4m3fn, DType::F8E4M3FN},
    {c10::ScalarType::Float8_e5m2, DType::F8E5M2},
};

}  // namespace

DType dtype_of(c10::ScalarType type) {
  for (auto [torch, dtype] : kTypes)
    if (torch == type) return dtype;
  raise<NotImplemented>("[tpu] the device has no elements of type {}; convert the tensor on the CPU first", c10::toString(type));
}

c10::ScalarType scalar_type_of(DType dtype) {
  for (auto [torch, ours] : kTypes)
    if (ours == dtype) return torch;
  FLAMBEAU_CHECK(false, "every element type has a PyTorch twin");
}

void check_index(int64_t index) {
  TORCH_CHECK(index == 0 || index == -1, "[tpu] expected tpu:0, got tpu:", index,
              "; there is 1 tpu device, in front of all chips of the process");
}

runtime::Storage& storage_of(const at::Tensor& tensor) {
  FLAMBEAU_CHECK(is_tpu(tensor), "only a tpu tensor has a storage record");
  return storage_of(tensor.storage());
}

at::Tensor without_bits(const at::Tensor& tensor) {
  if (!tensor.defined() || !has_bits(tensor)) return tensor;
  at::Tensor plain = tensor.is_conj() ? tensor.conj() : tensor;  // a view: conj() takes the bit away
  if (plain.is_neg()) plain = at::_neg_view(plain).neg();
  return tensor.is_conj() ? at::_conj_physical(plain) : plain;
}

std::vector<at::Tensor> without_bits(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = without_bits(tensor);
  return tensors;
}

runtime::TensorRef ref_of(const at::Tensor& tensor) {
  if (has_bits(tensor))
    raise<NotImplemented>("[tpu] a tensor with a lazy conjugate or negative bit is not handled here; call resolve_conj() or resolve_neg()");
  return {&storage_of(tensor),
          {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()},
          dtype_of(tensor.scalar_type())};
}

std::vector<runtime::TensorRef> refs_of(const std::vector<at::Tensor>& tensors, std::string_view what) {
  std::vector<runtime::TensorRef> refs;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !is_tpu(tensor))
      raise<InvalidArgument>("[tpu] expected {} to be tpu tensors, got {}", what,
                             tensor.defined() ? tensor.device().str() : "an undefined tensor");
    refs.push_back(ref_of(tensor));
  }
  return refs;
}

at::Tensor make_tensor(const std::shared_ptr<runtime::Storage>& storage, const hlo::Type& type) {
  c10::Storage torch_storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(storage->nbytes()), data_ptr_of(storage),
                             &allocator(), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(torch_storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(scalar_type_of(type.dtype)));
  if (type.dims.size() != 1 || type.dims[0] != 0) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(type.dims);
  return tensor;
}

at::Tensor make_strided(const hlo::Type& type, const hlo::Dims& strides) {
  return at::detail::empty_strided_generic(type.dims, strides, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           scalar_type_of(type.dtype));
}

at::Tensor call(const ops::Row& row, std::span<const runtime::CallArgument> arguments) {
  const auto outputs = runtime::Engine::get().call(row, arguments);
  return make_tensor(outputs[0].storage, *outputs[0].type);
}

runtime::CallArgument ref_or_none(const std::optional<at::Tensor>& tensor) {
  if (!tensor || !tensor->defined()) return std::monostate{};
  return ref_of(*tensor);
}

}  // namespace flambeau::device
