// Kernels that make, view, resize, copy and read tensors. What computes comes from the op table (dispatch.cc).
#include <limits>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/TensorShape.h>
#include <c10/util/safe_numerics.h>
#include <torch/library.h>

#include "base/error.h"
#include "device/allocator.h"
#include "device/device.h"
#include "device/errors.h"
#include "device/register.h"
#include "runtime/internal_ops.h"

namespace flambeau::device {
namespace {

using runtime::Engine;
using runtime::TensorRef;

// ---- making -----------------------------------------------------------------------------------------------------------------

c10::ScalarType type_or_default(std::optional<c10::ScalarType> dtype) {
  c10::ScalarType type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  dtype_of(type);  // refuses what the device does not have
  return type;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device>, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  if (layout.value_or(c10::kStrided) != c10::kStrided)
    raise<NotImplemented>("[tpu] sparse tensors are not handled; make a dense one, or keep it on the CPU");
  if (pin_memory.value_or(false)) raise<InvalidArgument>("Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type_or_default(dtype));
}

// ---- resizing and re-seating --------------------------------------------------------------------------------------------------

void grow(const at::Tensor& self, size_t nbytes) {
  const c10::Storage& storage = self.storage();
  if (nbytes <= storage.nbytes()) return;
  Engine::get().resize(storage_of(storage), static_cast<int64_t>(nbytes));
  storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  if (format == c10::MemoryFormat::Preserve) raise<InvalidArgument>("Unsupported memory format Preserve");
  uint64_t elements = 0;
  if (c10::safe_multiplies_u64(sizes, &elements) || elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    raise<InvalidArgument>("numel: integer multiplication overflow");
  grow(self, at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), static_cast<size_t>(self.storage_offset())));
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, const c10::Storage& source, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::native::checkSetStorage(self, source, offset, sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source) {
  int64_t elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, source, 0, {elements}, {1});
}

at::Tensor& set_source_storage_strided(at::Tensor& self, c10::Storage source, int64_t offset, at::IntArrayRef sizes,
                                       at::IntArrayRef strides) {
  return set_storage(self, source, offset, sizes, strides.empty() ? at::detail::defaultStrides(sizes) : strides.vec());
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true);
  return set_storage(self, storage, 0, {0}, {1});
}

// ---- copying ----------------------------------------------------------------------------------------------------------------

// self[...] = source on the device: broadcast, converted, through any strides.
void copy_on_device(const at::Tensor& self, const at::Tensor& source) {
  at::Tensor shown = source.expand(self.sizes());
  runtime::CallArgument arguments[] = {ref_of(shown), dtype_of(self.scalar_type())};
  std::optional<TensorRef> into[] = {ref_of(self)};
  Engine::get().call(runtime::kIdentity, arguments, into);
}

void copy_to_device(const at::Tensor& self, const at::Tensor& source) {
  at::Tensor dense = source.to(self.scalar_type()).contiguous();
  if (dense.sizes() == self.sizes()) {
    Engine::get().upload(ref_of(self), dense.const_data_ptr());
    return;
  }
  at::Tensor staged = at::empty(dense.sizes(), self.options());
  Engine::get().upload(ref_of(staged), dense.const_data_ptr());
  copy_on_device(self, staged);
}

void copy_to_host(const at::Tensor& self, const at::Tensor& source) {
  at::Tensor staged = at::empty(source.sizes(), source.options().device(at::kCPU));
  Engine::get().download(ref_of(source), staged.mutable_data_ptr());
  self.copy_(staged);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool /*non_blocking*/) {
  // The engine reads and writes memory of the host during the call, so nothing of it is left to wait for.
  if (is_tpu(self) && is_tpu(destination))
    copy_on_device(destination, self);
  else if (is_tpu(destination) && self.is_cpu())
    copy_to_device(destination, self);
  else if (is_tpu(self) && destination.is_cpu() && destination.is_contiguous() && destination.sizes() == self.sizes() &&
           destination.scalar_type() == self.scalar_type())
    Engine::get().download(ref_of(self), destination.mutable_data_ptr());
  else if (is_tpu(self) && destination.is_cpu())
    copy_to_host(destination, self);
  else
    raise<NotImplemented>("[copy_] a copy from {} to {} is not handled; go through the CPU", self.device().str(),
                          destination.device().str());
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  Engine::get().download(ref_of(self), host.mutable_data_ptr());
  return host.item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  if (self.scalar_type() != other.scalar_type())
    raise<InvalidArgument>("Expected object of data type {} but got data type {} for argument #2 'other' in call to equal",
                           c10::toString(self.scalar_type()), c10::toString(other.scalar_type()));
  return self.eq(other).all().item<bool>();
}

bool is_set_to(const at::Tensor& self, const at::Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() && self.strides() == source.strides();
}

void record_stream(at::Tensor&, at::Stream) {}  // buffers live as long as anything uses them

// Whether `self.data = from` may replace all that self is but its identity. Modules convert their parameters in this way, so that ties,
// optimizers and hooks keep them. c10 knows only the devices of its own tree: this adds strided tensors of ours and of the CPU.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto strided = [](c10::DispatchKeySet keys) {
    return keys.has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) &&
           keys.has_any(c10::DispatchKeySet({c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit}));
  };
  return strided(self.key_set()) && strided(from.key_set());
}

}  // namespace

void register_ops() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  torch::Library& m = *library;
  m.impl("empty.memory_format", TORCH_FN(Edge<&empty>::call));
  m.impl("empty_strided", TORCH_FN(Edge<&empty_strided>::call));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", TORCH_FN(Edge<&resize_>::call));
  m.impl("set_.source_Storage", TORCH_FN(Edge<&set_source_storage>::call));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(Edge<&set_source_storage_strided>::call));
  m.impl("set_.source_Tensor", TORCH_FN(Edge<&set_tensor>::call));
  m.impl("set_", TORCH_FN(Edge<&set_nothing>::call));
  m.impl("_copy_from", TORCH_FN(Edge<&copy_from>::call));
  m.impl("_copy_from_and_resize", TORCH_FN(Edge<&copy_from_and_resize>::call));
  m.impl("_local_scalar_dense", TORCH_FN(Edge<&local_scalar_dense>::call));
  m.impl("equal", TORCH_FN(Edge<&equal>::call));
  m.impl("is_set_to", TORCH_FN(Edge<&is_set_to>::call));
  m.impl("record_stream", TORCH_FN(Edge<&record_stream>::call));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  // Without the key of autograd the composite kernel would answer for parameters.
  static auto* autograd = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace flambeau::device
