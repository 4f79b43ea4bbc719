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
#include "device/arguments.h"
#include "device/device.h"
#include "device/edge.h"
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
                 std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_index(device.value_or(tpu()).index());
  if (layout.value_or(c10::kStrided) != c10::kStrided)
    raise<NotImplemented>("[tpu] sparse tensors are not handled; make a dense one, or keep it on the CPU");
  if (pin_memory.value_or(false)) raise<InvalidArgument>("Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  check_index(device.value_or(tpu()).index());
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type_or_default(dtype));
}

// ---- resizing and re-seating --------------------------------------------------------------------------------------------------

void grow(const at::Tensor& self, size_t nbytes) {
  const c10::Storage& storage = self.storage();
  if (nbytes > storage.nbytes()) resize_storage(storage, nbytes);
}

void check_elements(at::IntArrayRef sizes) {
  uint64_t elements = 0;
  if (c10::safe_multiplies_u64(sizes, &elements) || elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    raise<InvalidArgument>("numel: integer multiplication overflow");
}

// What can fail comes before what changes the tensor.
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
  TORCH_CHECK(format != c10::MemoryFormat::ChannelsLast || sizes.size() == 4, "required rank 4 tensor to use channels_last format");
  TORCH_CHECK(format != c10::MemoryFormat::ChannelsLast3d || sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
  if (self.sizes() != sizes) {
    check_elements(sizes);
    grow(self, at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), static_cast<size_t>(self.storage_offset())));
    self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  }
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, const c10::Storage& source, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  check_elements(sizes);
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
  const bool same = self.is_contiguous() && self.sizes() == source.sizes() && self.scalar_type() == source.scalar_type();
  const at::Tensor staged = same ? self : at::empty(source.sizes(), source.options().device(at::kCPU));
  Engine::get().download(ref_of(source), staged.mutable_data_ptr());
  if (!same) self.copy_(staged);
}

// A copy into a tensor with a lazy bit writes what the bit then turns into the source: both bits are their own inverse.
void copy_through_bits(const at::Tensor& self, const at::Tensor& source) {
  at::Tensor below = self, value = source.to(self.scalar_type());
  if (below.is_conj()) {
    below = below.conj();
    value = value.conj();
  }
  if (below.is_neg()) {
    below = at::_neg_view(below);
    value = at::_neg_view(value);
  }
  below.copy_(value);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool /*non_blocking*/) {
  // The engine reads and writes memory of the host during the call, so nothing of it is left to wait for.
  if (!(is_tpu(self) || self.is_cpu()) || !(is_tpu(destination) || destination.is_cpu()))
    raise<NotImplemented>("[copy_] a copy from {} to {} is not handled; go through the CPU", self.device().str(),
                          destination.device().str());
  const at::Tensor source = without_bits(self);
  if (has_bits(destination))
    copy_through_bits(destination, source);
  else if (!is_tpu(destination))
    copy_to_host(destination, source);
  else if (is_tpu(source))
    copy_on_device(destination, source);
  else
    copy_to_device(destination, source);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  Engine::get().download(ref_of(without_bits(self)), host.mutable_data_ptr());
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
  serve<"empty.memory_format", &empty>(m);
  serve<"empty_strided", &empty_strided>(m);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  serve<"resize_", &resize_>(m);
  serve<"set_.source_Storage", &set_source_storage>(m);
  serve<"set_.source_Storage_storage_offset", &set_source_storage_strided>(m);
  serve<"set_.source_Tensor", &set_tensor>(m);
  serve<"set_", &set_nothing>(m);
  serve<"_copy_from", &copy_from>(m);
  serve<"_copy_from_and_resize", &copy_from_and_resize>(m);
  serve<"_local_scalar_dense", &local_scalar_dense>(m);
  serve<"equal", &equal>(m);
  serve<"is_set_to", &is_set_to>(m);
  serve<"record_stream", &record_stream>(m);
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  // Copies know of lazy bits. PyTorch's fallback for other ops resolves bits by a copy, so for these it would have no end.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto* bits = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);  // for the process's life
    for (const char* name : {"_copy_from", "_copy_from_and_resize"})
      bits->impl(name, torch::CppFunction::makeFallthrough());
  }
  // Without the key of autograd the composite kernel would answer for parameters.
  static auto* autograd = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace flambeau::device
