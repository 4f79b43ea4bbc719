// The PyTorch device `tpu` (PrivateUse1): what stands between at::Tensor and the runtime.
//
// A `tpu` storage's data pointer is not memory: it points to the runtime::Storage record that holds the storage's value. Everything
// that reads or writes elements goes through ops; a kernel that dereferences the pointer is a bug. There is one logical device,
// `tpu:0`, in front of all devices of the client.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "runtime/engine.h"

namespace flambeau::device {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
inline c10::Device tpu() { return {kDeviceType, 0}; }
// A RuntimeError of PyTorch's unless `index` is 0, or -1, which stands for the current device.
void check_index(int64_t index);

// Registers the device with PyTorch (once) and says which plugin to use. The engine itself starts with the first tensor, or at once
// with `start`: then a missing plugin is an InvalidArgument here.
void initialize(const runtime::EngineOptions& options = {}, bool start = false);

// Whether tensors can be made here. Starts the engine: only a client knows whether the plugin has devices.
bool is_available();

// Waits until everything that was launched has run, and raises what failed.
void synchronize();
// The same for PyTorch and Python: with PyTorch's errors.
void synchronize_at_the_edge();

// ---- tensors --------------------------------------------------------------------------------------------------------------

DType dtype_of(c10::ScalarType type);  // NotImplemented for types that the device does not have (complex32, quantized)
c10::ScalarType scalar_type_of(DType dtype);

inline bool is_tpu(const at::Tensor& tensor) { return tensor.device().type() == kDeviceType; }
runtime::Storage& storage_of(const at::Tensor& tensor);
runtime::TensorRef ref_of(const at::Tensor& tensor);  // of a tensor without bits (see below)
// The same of several; `what` they are is said when one is not on the device.
std::vector<runtime::TensorRef> refs_of(const std::vector<at::Tensor>& tensors, std::string_view what);
// The same elements without a lazy conjugate or negative bit: `tensor` itself where it has none. Undefined tensors stay so.
at::Tensor without_bits(const at::Tensor& tensor);
std::vector<at::Tensor> without_bits(std::vector<at::Tensor> tensors);
// A contiguous tensor of `type` over `storage`.
at::Tensor make_tensor(const std::shared_ptr<runtime::Storage>& storage, const hlo::Type& type);
// One over a storage of its own, which `strides` show in another order than row-major.
at::Tensor make_strided(const hlo::Type& type, const hlo::Dims& strides);
// The first result of an op that PyTorch's dispatcher does not know.
at::Tensor call(const ops::Row& row, std::span<const runtime::CallArgument> arguments);
// An optional argument of such a call: none where there is no tensor or an undefined one.
runtime::CallArgument ref_or_none(const std::optional<at::Tensor>& tensor);

// ---- random numbers -------------------------------------------------------------------------------------------------------

const at::Generator& default_generator();
at::Generator new_generator();
// The stream of `generator`, or of the default one.
runtime::RandomSource& random_source(const std::optional<at::Generator>& generator);

}  // namespace flambeau::device
