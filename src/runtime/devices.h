// The devices that programs run on, or are compiled for ahead of time: who makes arrays and lays meshes.
//
// Without a client (ahead of time) arrays have types and layouts and no data.
//
// Threads: every function may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pjrt/pjrt.h"
#include "runtime/array.h"
#include "runtime/storage.h"
#include "targets/target.h"

namespace flambeau::runtime {

class Devices {
 public:
  explicit Devices(std::shared_ptr<const pjrt::Client> client);
  explicit Devices(targets::Target target) : target_(std::move(target)) {}
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  const targets::Target& target() const { return target_; }
  bool ahead_of_time() const { return client_ == nullptr; }
  // InvalidArgument ahead of time.
  const pjrt::Client& client() const;

  // `mesh` over the first devices. The same object for equal meshes, for as long as these devices live. InvalidArgument where there are
  // too few.
  const DeviceMesh* lay(const hlo::Mesh& mesh) const;
  // The mesh of what is made from nothing (data from the host, constants) and of recordings. Null, as it is first: one device.
  const DeviceMesh* default_mesh() const { return default_mesh_.load(std::memory_order_acquire); }
  void set_default_mesh(const DeviceMesh* mesh) { default_mesh_.store(mesh, std::memory_order_release); }

  // An array of `type` on `mesh` (null: on one device), laid out as `sharding` says (ignored without a mesh), from dense row-major data of
  // the whole; or from a function that is asked for the parts that this process holds.
  std::shared_ptr<const Array> array(const DeviceMesh* mesh, const hlo::Type& type, const hlo::Sharding& sharding, const void* data) const;
  std::shared_ptr<const Array> array(const DeviceMesh* mesh, const hlo::Type& type, const hlo::Sharding& sharding, const FillBox& fill) const;
  // Gives the storage of `tensor` zeros of the tensor's dtype, replicated on `mesh`, unless it holds something.
  void materialise(const TensorRef& tensor, const DeviceMesh* mesh) const;

 private:
  std::shared_ptr<const pjrt::Client> client_;
  targets::Target target_;
  std::atomic<const DeviceMesh*> default_mesh_{nullptr};
  mutable std::mutex meshes_mutex_;
  mutable std::vector<std::unique_ptr<const DeviceMesh>> meshes_;
};

}  // namespace flambeau::runtime
