#include "runtime/array.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/hash.h"
#include "hlo/sharding.h"

namespace flambeau::runtime {
namespace {

using hlo::Dims;
using hlo::Mesh;
using hlo::Sharding;
using hlo::Type;

Dims dense_strides(const Dims& dims, int64_t element) {
  Dims strides(dims.size());
  int64_t stride = element;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) strides[i] = stride;
  return strides;
}

int64_t offset_of(const Box& box, const Dims& byte_strides) {
  int64_t offset = 0;
  for (size_t i = 0; i < box.start.size(); ++i) offset += box.start[i] * byte_strides[i];
  return offset;
}

// Copies a dense box into its place in a dense array of `dims`, row by row.
void paste(const char* part, const Box& box, const Dims& dims, int64_t element, char* whole) {
  if (box.elements() == 0) return;
  const Dims strides = dense_strides(dims, element);
  // Trailing dimensions that the box has whole are contiguous in both.
  size_t rank = dims.size(), split = rank;
  int64_t run = element;
  while (split > 0 && box.size[split - 1] == dims[split - 1]) run *= dims[--split];
  if (split > 0) run *= box.size[--split];
  Dims index(split, 0);
  char* target = whole + offset_of(box, strides);
  for (;;) {
    int64_t at = 0;
    for (size_t i = 0; i < split; ++i) at += index[i] * strides[i];
    std::memcpy(target + at, part, static_cast<size_t>(run));
    part += run;
    size_t i = split;
    while (i > 0 && ++index[i - 1] == box.size[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

std::vector<Box> held_boxes(const DeviceMesh& mesh, const Sharding& sharding, const Dims& dims) {
  std::vector<Box> boxes;
  for (int64_t position : mesh.positions) boxes.push_back(box_at(mesh.mesh, sharding, dims, position));
  return boxes;
}

std::vector<const Box*> distinct(const std::vector<Box>& boxes) {
  std::vector<const Box*> result;
  for (const Box& box : boxes)
    if (std::none_of(result.begin(), result.end(), [&](const Box* other) { return *other == box; })) result.push_back(&box);
  return result;
}

std::string axes_text(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const hlo::MeshAxis& axis : mesh.axes) axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(axes, " x "));
}

}  // namespace

std::string describe(const DeviceMesh* mesh) { return mesh ? "the mesh " + axes_text(mesh->mesh) : "one device"; }

DeviceMesh DeviceMesh::ahead_of_time(int64_t device_count, hlo::Mesh mesh) {
  const int64_t size = mesh.size();
  if (size < 1 || size > device_count)
    raise<InvalidArgument>("[mesh] expected a mesh of at most the {} devices there are, got {} devices ({}); choose smaller degrees",
                           device_count, size, axes_text(mesh));
  DeviceMesh result;
  Hasher hasher;
  for (const hlo::MeshAxis& axis : mesh.axes) hasher.add(std::string_view(axis.name)).add(axis.size);
  result.hash = hasher.value();
  result.mesh = std::move(mesh);
  result.device_ids.resize(static_cast<size_t>(size));
  std::iota(result.device_ids.begin(), result.device_ids.end(), 0);
  return result;
}

DeviceMesh DeviceMesh::over(const pjrt::Client& client, hlo::Mesh mesh) {
  DeviceMesh result = ahead_of_time(std::ssize(client.devices()), std::move(mesh));
  result.device_ids.clear();
  const int64_t size = result.mesh.size();
  for (int64_t position = 0; position < size; ++position) {
    const pjrt::Device& device = client.devices()[static_cast<size_t>(position)];
    result.device_ids.push_back(device.id);
    if (!device.addressable) continue;
    result.positions.push_back(position);
    result.devices.push_back(&device);
  }
  if (result.positions.empty())
    raise<InvalidArgument>("[mesh] none of the {} devices of the mesh belongs to this process; make the mesh as large as the pod", size);
  return result;
}

int64_t Box::elements() const {
  int64_t n = 1;
  for (int64_t d : size) n *= d;
  return n;
}

Box box_at(const Mesh& mesh, const Sharding& sharding, const Dims& dims, int64_t position) {
  Box box{Dims(dims.size(), 0), dims};
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const std::vector<std::string>& axes = sharding.dims[d].axes;
    box.size[d] = dims[d] / hlo::axes_size(mesh, axes);
    box.start[d] = hlo::index_along(mesh, axes, position) * box.size[d];
  }
  return box;
}

bool is_replicated(const Sharding& sharding) {
  return std::all_of(sharding.dims.begin(), sharding.dims.end(), [](const Sharding::Dim& d) { return d.axes.empty(); });
}

bool same_layout(const Sharding& a, const Sharding& b) {
  if (a.dims.empty() || b.dims.empty()) return is_replicated(a) && is_replicated(b);
  return std::ranges::equal(a.dims, b.dims, {}, &Sharding::Dim::axes, &Sharding::Dim::axes);
}

Sharding with_rank(const Sharding& sharding, int64_t rank) {
  if (!sharding.dims.empty()) return sharding;
  Sharding result = sharding;
  result.dims.resize(static_cast<size_t>(rank));
  return result;
}

void check_divides(const Mesh& mesh, const Sharding& sharding, const Type& type) {
  if (sharding.dims.empty()) return;
  if (std::string fault = hlo::sharding_fault(sharding, mesh, type.rank()); !fault.empty())
    raise<InvalidArgument>("[sharding] {} for {}", fault, type.to_string());
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const int64_t parts = hlo::axes_size(mesh, sharding.dims[d].axes);
    if (type.dims[d] % parts != 0)
      raise<InvalidArgument>("[sharding] dimension {} of {} does not split into {} equal parts as {} asks; choose a mesh whose axes "
                             "divide it, or pad it to {}", d, type.to_string(), parts, sharding.to_string(),
                             (type.dims[d] + parts - 1) / parts * parts);
  }
}

bool Array::deleted() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard->deleted(); });
}

std::shared_ptr<const Array> upload_array(const pjrt::Client& client, const DeviceMesh* mesh, const Type& type,
                                          const Sharding& sharding, const void* data) {
  std::vector<std::unique_ptr<pjrt::Buffer>> shards;
  if (!mesh) {
    shards.push_back(client.upload({data, type.dtype, type.dims}, client.addressable_devices().front()));
    return std::make_shared<const Array>(std::move(shards));
  }
  check_divides(mesh->mesh, sharding, type);
  const Dims strides = dense_strides(type.dims, byte_size(type.dtype));
  for (size_t i = 0; i < mesh->positions.size(); ++i) {
    const Box box = box_at(mesh->mesh, sharding, type.dims, mesh->positions[i]);
    const char* part = static_cast<const char*>(data) + offset_of(box, strides);
    shards.push_back(box.size == type.dims ? client.upload({data, type.dtype, type.dims}, *mesh->devices[i])
                                           : client.upload({part, type.dtype, box.size, strides}, *mesh->devices[i]));
  }
  return std::make_shared<const Array>(std::move(shards), mesh, sharding);
}

std::shared_ptr<const Array> fill_array(const pjrt::Client& client, const DeviceMesh& mesh, const Type& type,
                                        const Sharding& sharding, const FillBox& fill) {
  check_divides(mesh.mesh, sharding, type);
  const std::vector<Box> boxes = held_boxes(mesh, sharding, type.dims);
  std::vector<std::unique_ptr<pjrt::Buffer>> shards(boxes.size());
  for (const Box* box : distinct(boxes)) {
    std::vector<char> part(static_cast<size_t>(box->elements() * byte_size(type.dtype)));
    fill(*box, part.data());
    for (size_t i = 0; i < boxes.size(); ++i)
      if (boxes[i] == *box) shards[i] = client.upload({part.data(), type.dtype, box->size}, *mesh.devices[i]);
  }
  return std::make_shared<const Array>(std::move(shards), &mesh, sharding);
}

bool held_whole(const DeviceMesh& mesh, const Sharding& sharding, const Dims& dims) {
  if (is_replicated(sharding)) return true;
  const std::vector<Box> boxes = held_boxes(mesh, sharding, dims);
  int64_t held = 0;
  for (const Box* box : distinct(boxes)) held += box->elements();  // boxes are equal or disjoint
  return held == Box{{}, dims}.elements();
}

void download_array(const Array& array, const Type& type, void* out) {
  const DeviceMesh* const mesh = array.mesh();
  if (!mesh || is_replicated(array.sharding())) return array.shards().front()->to_host(out);
  FLAMBEAU_CHECK(held_whole(*mesh, array.sharding(), type.dims), "an array that is spread over processes is gathered first");
  const std::vector<Box> boxes = held_boxes(*mesh, array.sharding(), type.dims);
  std::vector<char> part;
  for (const Box* box : distinct(boxes)) {
    const pjrt::Buffer& shard = *array.shards()[static_cast<size_t>(box - boxes.data())];
    part.resize(static_cast<size_t>(box->elements() * byte_size(type.dtype)));
    shard.to_host(part.data());
    paste(part.data(), *box, type.dims, byte_size(type.dtype), static_cast<char*>(out));
  }
}

}  // namespace flambeau::runtime
