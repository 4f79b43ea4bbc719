// Storage records as c10 storages.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "runtime/storage.h"

namespace flambeau::device {

// Also what torch.accelerator asks for memory statistics. Nothing is cached: memory is the plugin's.
c10::DeviceAllocator& allocator();

// Owns a reference to `storage`, which must not have a c10 owner yet.
c10::DataPtr data_ptr_of(const std::shared_ptr<runtime::Storage>& storage);

runtime::Storage& storage_of(const c10::Storage& storage);
// Keeps what fits; the rest is undefined.
void resize_storage(const c10::Storage& storage, size_t nbytes);

}  // namespace flambeau::device
