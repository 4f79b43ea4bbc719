#include <cstring>

#include "pjrt/element_type.h"
#include "pjrt/testing/fake_objects.h"

namespace flambeau::pjrt::fake {
namespace {

// Copies a strided array; `depth` is the dimension at hand.
void gather(char*& to, const char* from, const FakeType& type, const int64_t* strides, size_t depth, size_t element) {
  if (depth == type.dims.size()) {
    std::memcpy(to, from, element);
    to += element;
    return;
  }
  for (int64_t i = 0; i < type.dims[depth]; ++i) gather(to, from + i * strides[depth], type, strides, depth + 1, element);
}

PJRT_Error* buffer_from_host(PJRT_Client_BufferFromHostBuffer_Args* a) {
  if (auto status = strike(&Faults::upload); status.code != 0) return error(status);
  auto buffer = std::make_unique<PJRT_Buffer>();
  buffer->type = {from_pjrt(a->type), {a->dims, a->dims + a->num_dims}};
  buffer->bytes.resize(static_cast<size_t>(buffer->type.byte_size()));
  buffer->device = a->device;
  buffer->ready = finished();
  if (a->num_byte_strides != 0) {
    char* to = buffer->bytes.data();
    gather(to, static_cast<const char*>(a->data), buffer->type, a->byte_strides, 0,
           static_cast<size_t>(byte_size(buffer->type.dtype)));
  } else if (!buffer->bytes.empty()) {
    std::memcpy(buffer->bytes.data(), a->data, buffer->bytes.size());
  }
  auto released = finished();
  if (a->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy) {
    released = buffer->host_released = std::make_shared<Completion>();
  }
  a->done_with_host_buffer = new PJRT_Event(released);
  a->buffer = buffer.release();
  return nullptr;
}

PJRT_Error* buffer_destroy(PJRT_Buffer_Destroy_Args* a) {
  a->buffer->drop_data();
  delete a->buffer;
  return nullptr;
}
PJRT_Error* buffer_delete(PJRT_Buffer_Delete_Args* a) {
  a->buffer->drop_data();
  return nullptr;
}
PJRT_Error* buffer_is_deleted(PJRT_Buffer_IsDeleted_Args* a) {
  a->is_deleted = a->buffer->deleted;
  return nullptr;
}
PJRT_Error* buffer_type(PJRT_Buffer_ElementType_Args* a) {
  a->type = to_pjrt(a->buffer->type.dtype);
  return nullptr;
}
PJRT_Error* buffer_dimensions(PJRT_Buffer_Dimensions_Args* a) {
  a->dims = a->buffer->type.dims.data();
  a->num_dims = a->buffer->type.dims.size();
  return nullptr;
}
PJRT_Error* buffer_size(PJRT_Buffer_OnDeviceSizeInBytes_Args* a) {
  a->on_device_size_in_bytes = static_cast<size_t>(a->buffer->type.byte_size());
  return nullptr;
}
PJRT_Error* buffer_device(PJRT_Buffer_Device_Args* a) {
  a->device = a->buffer->device;
  return nullptr;
}
Status deleted_status() { return {PJRT_Error_Code_INVALID_ARGUMENT, "the buffer has been deleted or donated"}; }
PJRT_Error* buffer_ready(PJRT_Buffer_ReadyEvent_Args* a) {
  a->event = new PJRT_Event(a->buffer->deleted ? finished(deleted_status()) : a->buffer->ready);
  return nullptr;
}
PJRT_Error* buffer_to_host(PJRT_Buffer_ToHostBuffer_Args* a) {
  if (auto status = strike(&Faults::download); status.code != 0) return error(status);
  if (a->src->deleted) return error(deleted_status());
  if (a->dst == nullptr) {
    a->dst_size = a->src->bytes.size();
    return nullptr;
  }
  if (a->dst_size < a->src->bytes.size()) return error({PJRT_Error_Code_INVALID_ARGUMENT, "the destination is too small"});
  const Status late = strike(&Faults::download_late);
  auto copied = std::make_shared<Completion>();
  a->src->ready->on_done([copied, late, to = a->dst, bytes = a->src->bytes](const Status& status) {
    if (status.code == 0 && late.code == 0 && !bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    copied->finish(status.code != 0 ? status : late);
  });
  a->event = new PJRT_Event(copied);
  return nullptr;
}

}  // namespace

void add_buffers(PJRT_Api& api) {
  api.PJRT_Client_BufferFromHostBuffer = buffer_from_host;
  api.PJRT_Buffer_Destroy = buffer_destroy;
  api.PJRT_Buffer_Delete = buffer_delete;
  api.PJRT_Buffer_IsDeleted = buffer_is_deleted;
  api.PJRT_Buffer_ElementType = buffer_type;
  api.PJRT_Buffer_Dimensions = buffer_dimensions;
  api.PJRT_Buffer_OnDeviceSizeInBytes = buffer_size;
  api.PJRT_Buffer_Device = buffer_device;
  api.PJRT_Buffer_ReadyEvent = buffer_ready;
  api.PJRT_Buffer_ToHostBuffer = buffer_to_host;
}

}  // namespace flambeau::pjrt::fake
