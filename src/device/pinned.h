// Pinned memory of the host: what torch.empty(pin_memory=True), Tensor.pin_memory() and DataLoader(pin_memory=True) give for this device.
//
// PJRT copies from any memory of the host and has no allocator of its own, so pinned memory is memory of whole pages that the system
// keeps in place where its limits allow it (mlock). The engine reads and writes the host's memory during the call that copies:
// with non_blocking=True, too, pinned memory may be reused as soon as that call is over.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace flambeau::device {

at::HostAllocator& pinned_allocator();

// Whether `data` lies within memory that the allocator has given and not got back.
bool is_pinned(const void* data);

}  // namespace flambeau::device
