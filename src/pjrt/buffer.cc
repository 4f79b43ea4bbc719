#include <functional>
#include <numeric>

#include "pjrt/call.h"
#include "pjrt/element_type.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

void destroy(const PJRT_Api* api, PJRT_Buffer* buffer) {
  release<&PJRT_Api::PJRT_Buffer_Destroy>(api, [&](auto& a) { a.buffer = buffer; });
}

// The event of a copy of `buffer` to `destination`, dense row-major whatever the layout on the device.
PJRT_Event* copy_to_host(const Buffer& buffer, void* destination) {
  const auto dims = buffer.dims();
  constexpr size_t kUsualRank = 8;
  int64_t usual[kUsualRank];
  std::vector<int64_t> large;
  int64_t* minor_to_major = usual;
  if (dims.size() > kUsualRank) {
    large.resize(dims.size());
    minor_to_major = large.data();
  }
  for (size_t i = 0; i < dims.size(); ++i) minor_to_major[i] = static_cast<int64_t>(dims.size() - 1 - i);

  PJRT_Buffer_MemoryLayout layout{};
  layout.struct_size = sizeof(layout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = sizeof(layout.tiled);
  layout.tiled.minor_to_major = minor_to_major;
  layout.tiled.minor_to_major_size = dims.size();
  return call<&PJRT_Api::PJRT_Buffer_ToHostBuffer>(
             buffer.client().plugin().api(), "to_host",
             [&](auto& a) {
               a.src = buffer.handle();
               a.host_layout = dims.size() > 1 ? &layout : nullptr;  // with fewer dimensions there is only one
               a.dst = destination;
               a.dst_size = static_cast<size_t>(buffer.byte_size());
             })
      .event;
}

}  // namespace

Buffer::Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* owned, DType dtype, std::vector<int64_t> dims,
               int device_id)
    : client_(std::move(client)), handle_(owned), dtype_(dtype), dims_(std::move(dims)), device_id_(device_id) {}

Buffer::Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* owned) : client_(std::move(client)), handle_(owned) {
  const PJRT_Api* api = client_->plugin().api();
  auto about = [&](auto& a) { a.buffer = handle_; };
  try {
    dtype_ = from_pjrt(call<&PJRT_Api::PJRT_Buffer_ElementType>(api, "buffer", about).type);
    const auto shape = call<&PJRT_Api::PJRT_Buffer_Dimensions>(api, "buffer", about);
    dims_.assign(shape.dims, shape.dims + shape.num_dims);
    const auto device = call<&PJRT_Api::PJRT_Buffer_Device>(api, "buffer", about).device;
    const auto description =
        call<&PJRT_Api::PJRT_Device_GetDescription>(api, "buffer", [&](auto& a) { a.device = device; }).device_description;
    device_id_ =
        call<&PJRT_Api::PJRT_DeviceDescription_Id>(api, "buffer", [&](auto& a) { a.device_description = description; }).id;
  } catch (...) {
    destroy(api, handle_);
    throw;
  }
}

Buffer::~Buffer() { destroy(client_->plugin().api(), handle_); }

int64_t Buffer::element_count() const {
  return std::accumulate(dims_.begin(), dims_.end(), int64_t{1}, std::multiplies<>());
}

int64_t Buffer::byte_size() const { return element_count() * flambeau::byte_size(dtype_); }

int64_t Buffer::device_byte_size() const {
  const auto args = call<&PJRT_Api::PJRT_Buffer_OnDeviceSizeInBytes>(client_->plugin().api(), "buffer",
                                                                     [&](auto& a) { a.buffer = handle_; });
  return static_cast<int64_t>(args.on_device_size_in_bytes);
}

Event Buffer::ready() const {
  const auto args =
      call<&PJRT_Api::PJRT_Buffer_ReadyEvent>(client_->plugin().api(), "buffer", [&](auto& a) { a.buffer = handle_; });
  return Event(client_->plugin(), args.event);
}

bool Buffer::deleted() const {
  return call<&PJRT_Api::PJRT_Buffer_IsDeleted>(client_->plugin().api(), "buffer", [&](auto& a) { a.buffer = handle_; })
      .is_deleted;
}

Event Buffer::to_host_async(void* destination) const {
  if (element_count() == 0) return ready();  // nothing to copy, but a failed program must show
  return Event(client_->plugin(), copy_to_host(*this, destination));
}

void Buffer::to_host(void* destination) const {
  if (element_count() == 0) {
    ready().await();
    return;
  }
  const PJRT_Api* api = client_->plugin().api();
  struct OwnedEvent {  // an Event would share it, which costs an allocation
    const PJRT_Api* api;
    PJRT_Event* event;
    ~OwnedEvent() {
      release<&PJRT_Api::PJRT_Event_Destroy>(api, [&](auto& a) { a.event = event; });
    }
  } copied{api, copy_to_host(*this, destination)};
  call<&PJRT_Api::PJRT_Event_Await>(api, "to_host", [&](auto& a) { a.event = copied.event; });
}

}  // namespace flambeau::pjrt
