// Clients and devices of the fake plugin.
#include <algorithm>
#include <span>
#include <string_view>

#include "pjrt/testing/fake_objects.h"

namespace flambeau::pjrt::fake {
namespace {

PJRT_Error* client_create(PJRT_Client_Create_Args* a) {
  if (auto status = strike(&Faults::create_client); status.code != 0) return error(status);
  int64_t device_count = 4, process_count = 1;
  auto client = std::make_unique<PJRT_Client>();
  for (const PJRT_NamedValue& option : std::span(a->create_options, a->num_options)) {
    const std::string_view name(option.name, option.name_size);
    if (name == "cpu_device_count" && option.type == PJRT_NamedValue_kInt64) {
      device_count = option.int64_value;
    } else if (name == "process_count" && option.type == PJRT_NamedValue_kInt64) {
      process_count = option.int64_value;
    } else if (name == "platform_name" && option.type == PJRT_NamedValue_kString) {
      client->platform.assign(option.string_value, option.value_size);
    } else {
      return error({PJRT_Error_Code_INVALID_ARGUMENT, "unexpected client option " + std::string(name)});
    }
  }
  const int64_t each = device_count / std::max<int64_t>(process_count, 1);
  for (int id = 0; id < device_count; ++id) {
    const int process = each == 0 ? 0 : static_cast<int>(id / each);
    client->devices.push_back(
        std::unique_ptr<PJRT_Device>(new PJRT_Device{{id, process, "fake device " + std::to_string(id)}, client.get()}));
    client->all.push_back(client->devices.back().get());
    if (process == 0) client->addressable.push_back(client->all.back());
  }
  a->client = client.release();
  return nullptr;
}
PJRT_Error* client_destroy(PJRT_Client_Destroy_Args* a) {
  delete a->client;
  return nullptr;
}
PJRT_Error* client_platform_name(PJRT_Client_PlatformName_Args* a) {
  a->platform_name = a->client->platform.data();
  a->platform_name_size = a->client->platform.size();
  return nullptr;
}
PJRT_Error* client_platform_version(PJRT_Client_PlatformVersion_Args* a) {
  a->platform_version = "0";
  a->platform_version_size = 1;
  return nullptr;
}
PJRT_Error* client_process_index(PJRT_Client_ProcessIndex_Args* a) {
  a->process_index = 0;
  return nullptr;
}
PJRT_Error* client_devices(PJRT_Client_Devices_Args* a) {
  a->devices = a->client->all.data();
  a->num_devices = a->client->all.size();
  return nullptr;
}

PJRT_Error* device_description(PJRT_Device_GetDescription_Args* a) {
  a->device_description = &a->device->description;
  return nullptr;
}
PJRT_Error* device_is_addressable(PJRT_Device_IsAddressable_Args* a) {
  a->is_addressable = a->device->description.process_index == 0;
  return nullptr;
}
PJRT_Error* description_id(PJRT_DeviceDescription_Id_Args* a) {
  a->id = a->device_description->id;
  return nullptr;
}
PJRT_Error* description_process(PJRT_DeviceDescription_ProcessIndex_Args* a) {
  a->process_index = a->device_description->process_index;
  return nullptr;
}
PJRT_Error* description_attributes(PJRT_DeviceDescription_Attributes_Args* a) {
  a->attributes = nullptr;
  a->num_attributes = 0;
  return nullptr;
}
PJRT_Error* description_kind(PJRT_DeviceDescription_Kind_Args* a) {
  a->device_kind = "fake";
  a->device_kind_size = 4;
  return nullptr;
}
PJRT_Error* description_debug(PJRT_DeviceDescription_DebugString_Args* a) {
  a->debug_string = a->device_description->text.data();
  a->debug_string_size = a->device_description->text.size();
  return nullptr;
}

}  // namespace

void add_clients(PJRT_Api& api) {
  api.PJRT_Client_Create = client_create;
  api.PJRT_Client_Destroy = client_destroy;
  api.PJRT_Client_PlatformName = client_platform_name;
  api.PJRT_Client_PlatformVersion = client_platform_version;
  api.PJRT_Client_ProcessIndex = client_process_index;
  api.PJRT_Client_Devices = client_devices;
  api.PJRT_Device_GetDescription = device_description;
  api.PJRT_Device_IsAddressable = device_is_addressable;
  api.PJRT_DeviceDescription_Id = description_id;
  api.PJRT_DeviceDescription_ProcessIndex = description_process;
  api.PJRT_DeviceDescription_Attributes = description_attributes;
  api.PJRT_DeviceDescription_Kind = description_kind;
  api.PJRT_DeviceDescription_DebugString = description_debug;
}

}  // namespace flambeau::pjrt::fake
