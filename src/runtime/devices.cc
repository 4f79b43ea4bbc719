#include "runtime/devices.h"

#include "base/error.h"

namespace flambeau::runtime {

Devices::Devices(std::shared_ptr<const pjrt::Client> client) : client_(std::move(client)), target_(targets::Target::of(*client_)) {
  if (client_->addressable_devices().empty())
    raise<PluginError>("[engine] the plugin {} offers no device to this process", client_->plugin().path().string());
}

const pjrt::Client& Devices::client() const {
  if (!client_)
    raise<InvalidArgument>("[engine] programs are made ahead of time, for {} devices '{}', so nothing can run or be read; only record "
                           "and compile, or start with a plugin of this machine",
                           target_.device_count, target_.generation);
  return *client_;
}

const DeviceMesh* Devices::lay(const hlo::Mesh& mesh) const {
  std::lock_guard lock(meshes_mutex_);
  for (const auto& laid : meshes_)
    if (laid->mesh == mesh) return laid.get();
  meshes_.push_back(std::make_unique<const DeviceMesh>(client_ ? DeviceMesh::over(*client_, mesh)
                                                               : DeviceMesh::ahead_of_time(target_.device_count, mesh)));
  return meshes_.back().get();
}

std::shared_ptr<const Array> Devices::array(const DeviceMesh* mesh, const hlo::Type& type, const hlo::Sharding& sharding,
                                            const void* data) const {
  if (client_) return upload_array(*client_, mesh, type, sharding, data);
  if (mesh) check_divides(mesh->mesh, sharding, type);
  return std::make_shared<const Array>(std::vector<std::unique_ptr<pjrt::Buffer>>(), mesh, sharding);
}

std::shared_ptr<const Array> Devices::array(const DeviceMesh* mesh, const hlo::Type& type, const hlo::Sharding& sharding,
                                            const FillBox& fill) const {
  if (!client_) return array(mesh, type, sharding, nullptr);
  if (mesh) return fill_array(*client_, *mesh, type, sharding, fill);
  std::vector<char> whole(static_cast<size_t>(type.bytes()));
  fill({hlo::Dims(type.dims.size(), 0), type.dims}, whole.data());
  return upload_array(*client_, nullptr, type, {}, whole.data());
}

void Devices::materialise(const TensorRef& tensor, const DeviceMesh* mesh) const {
  Storage& storage = *tensor.storage;
  const Held before = storage.held();
  if (before.array || before.failure || before.recording != 0 || storage.nbytes() == 0) return;
  hlo::Type type{tensor.dtype, {storage.nbytes() / byte_size(tensor.dtype)}};
  if (shows_all(tensor)) type.dims = tensor.view.sizes;
  const std::vector<char> zeros(client_ ? static_cast<size_t>(storage.nbytes()) : 0);
  storage.replace(before, storage.nbytes(), type, array(mesh, type, {}, zeros.data()));  // unless another thread has written to it
}

}  // namespace flambeau::runtime
