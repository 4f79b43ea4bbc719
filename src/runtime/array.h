// Values on devices: an Array is one immutable buffer a device, each holding the part of a global array that a sharding gives it.
//
// An Array on one device is one buffer. One on a mesh has a buffer for every device of the mesh that this process addresses, in the
// mesh's order; the other processes hold the rest. A sharding without dimensions means replicated. Ahead of time
// (devices.h) an Array has a layout and no buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hlo/graph.h"
#include "pjrt/pjrt.h"
#include "runtime/launch_checks.h"

namespace flambeau::runtime {

// The mesh and the devices that it is laid over.
struct DeviceMesh {
  hlo::Mesh mesh;
  std::vector<int> device_ids;                 // by position: row-major over the mesh's axes
  std::vector<int64_t> positions;              // those whose device this process addresses, ascending
  std::vector<const pjrt::Device*> devices;    // by index into `positions`
  uint64_t hash = 0;                           // of the mesh

  // InvalidArgument when the client has too few devices, or this process addresses none of those in use.
  static DeviceMesh over(const pjrt::Client& client, hlo::Mesh mesh);
  // Over the first of `device_count` devices that no process here has.
  static DeviceMesh ahead_of_time(int64_t device_count, hlo::Mesh mesh);
};

// "one device", or "the mesh shard 4 x tensor 2".
std::string describe(const DeviceMesh* mesh);

// A rectangular part of a global array.
struct Box {
  hlo::Dims start, size;
  friend bool operator==(const Box&, const Box&) = default;
  int64_t elements() const;
};

// The part of an array of `dims` that the device at `position` of the mesh holds.
Box box_at(const hlo::Mesh& mesh, const hlo::Sharding& sharding, const hlo::Dims& dims, int64_t position);

bool is_replicated(const hlo::Sharding& sharding);
// Whether two shardings give every device the same part.
bool same_layout(const hlo::Sharding& a, const hlo::Sharding& b);
// The same sharding with one entry a dimension, as programs are told it.
hlo::Sharding with_rank(const hlo::Sharding& sharding, int64_t rank);
// InvalidArgument when a sharding does not fit the mesh or does not split `type` into equal parts: the partitioner would weaken it in
// silence.
void check_divides(const hlo::Mesh& mesh, const hlo::Sharding& sharding, const hlo::Type& type);

class Array {
 public:
  // `shards` by index into DeviceMesh::positions; one without a mesh. `checks`: of the launches that it comes from; null: none.
  explicit Array(std::vector<std::unique_ptr<pjrt::Buffer>> shards, const DeviceMesh* mesh = nullptr, hlo::Sharding sharding = {},
                 std::shared_ptr<const CheckList> checks = nullptr)
      : shards_(std::move(shards)), mesh_(mesh), sharding_(std::move(sharding)), checks_(std::move(checks)) {}

  const std::vector<std::unique_ptr<pjrt::Buffer>>& shards() const { return shards_; }
  const DeviceMesh* mesh() const { return mesh_; }  // null: one device
  const hlo::Sharding& sharding() const { return sharding_; }
  const std::shared_ptr<const CheckList>& checks() const { return checks_; }
  bool deleted() const;

 private:
  std::vector<std::unique_ptr<pjrt::Buffer>> shards_;
  const DeviceMesh* mesh_;
  hlo::Sharding sharding_;
  std::shared_ptr<const CheckList> checks_;
};

// Writes the elements of a box, dense row-major, to `out`.
using FillBox = std::function<void(const Box& box, void* out)>;

// Makes an array from dense row-major host data; every device gets its part. `mesh` null: one buffer on the client's first device.
std::shared_ptr<const Array> upload_array(const pjrt::Client& client, const DeviceMesh* mesh, const hlo::Type& type,
                                          const hlo::Sharding& sharding, const void* data);
// The same from a function that is asked once for each distinct box that this process holds.
std::shared_ptr<const Array> fill_array(const pjrt::Client& client, const DeviceMesh& mesh, const hlo::Type& type,
                                        const hlo::Sharding& sharding, const FillBox& fill);

// Whether the parts that this process holds cover the whole array.
bool held_whole(const DeviceMesh& mesh, const hlo::Sharding& sharding, const hlo::Dims& dims);
// Copies the whole array, dense row-major, and waits. The parts held must cover it.
void download_array(const Array& array, const hlo::Type& type, void* out);

}  // namespace flambeau::runtime
