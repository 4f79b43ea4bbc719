#include "runtime/transfers.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/internal_ops.h"

namespace flambeau::runtime {

std::shared_ptr<Storage> hold(const Type& type, std::shared_ptr<const Array> array) {
  std::shared_ptr<Storage> storage = Storage::create(type.bytes());
  storage->set(type, std::move(array));
  return storage;
}

void Transfers::upload(const TensorRef& destination, const void* data) {
  Type type = destination.type();
  if (type.elements() == 0) return;
  std::optional<TensorRef> into[] = {destination};
  if (Trace::current()) {
    // A constant of the program; comparing the recordings finds one that changes.
    CallArgument arguments[] = {type.dims, type.dtype, std::string(static_cast<const char*>(data), static_cast<size_t>(type.bytes()))};
    runner_.call(kLiteral, arguments, into, nullptr, {});
    return;
  }
  // State keeps its dimensions and layout, also when it is replaced through a reshaped view.
  const Held held = destination.storage->held();
  const DeviceMesh* const mesh = held.array ? held.array->mesh() : devices_.default_mesh();
  if (shows_all(destination)) {
    hlo::Sharding sharding;
    if (held.array && held.type.dtype == type.dtype && held.type.elements() == type.elements()) {
      type = held.type;
      sharding = held.array->sharding();
    }
    destination.storage->set(type, devices_.array(mesh, type, sharding, data));
    return;
  }
  const auto staged = hold(type, devices_.array(mesh, type, {}, data));
  CallArgument arguments[] = {TensorRef{staged.get(), View::contiguous(type.dims), type.dtype}, type.dtype};
  runner_.call(kIdentity, arguments, into, nullptr, {});
}

void Transfers::download(const TensorRef& source, void* data) {
  Type type = source.type();
  if (type.elements() == 0) return;
  if (Trace::current())
    raise<InvalidArgument>("[capture] the value of a tensor {} is read on the host while a step is recorded; return the tensor from the "
                           "captured function and read it afterwards", type.to_string());
  const Held held = source.storage->held();
  if (held.failure) throw Error(*held.failure);
  if (held.recording != 0)
    raise("[capture] this tensor was made while a step was recorded and was not returned by it, so it has no value outside");
  devices_.client();  // raises where nothing can be read
  if (!held.array) {
    std::memset(data, 0, static_cast<size_t>(type.bytes()));
    return;
  }
  std::shared_ptr<const Array> array = held.array;
  const bool dense = held.type.dtype == type.dtype && held.type.elements() == type.elements() && source.view.offset == 0 &&
                     source.view.is_contiguous();
  if (dense) type = held.type;
  const DeviceMesh* const mesh = array->mesh();
  if (!dense || (mesh && !held_whole(*mesh, array->sharding(), type.dims))) array = gathered(source, mesh);
  download_array(*array, type, data);
  if (array->checks()) raise_failed(*array->checks());
}

// A dense copy of what `source` shows, whole on every device.
std::shared_ptr<const Array> Transfers::gathered(const TensorRef& source, const DeviceMesh* mesh) {
  Trace trace(TraceKind::Strict, TraceContext{mesh});
  CallArgument arguments[] = {source, source.dtype};
  const ValueId outputs[] = {*trace.append(kIdentity, arguments)[0]};
  const hlo::Sharding replicated[] = {{}};
  const auto copy = programs_.get(trace, outputs, {}, "eager", std::span(replicated).first(mesh ? 1 : 0));
  const std::vector<std::shared_ptr<const Array>> externals = trace.take_values();
  return launcher_.outputs(*copy, {externals, trace.numbers()})[0];
}

std::shared_ptr<Storage> Transfers::dense(TensorRef& tensor, const DeviceMesh* mesh) {
  devices_.materialise(tensor, mesh);
  if (const Held held = tensor.storage->held(); tensor.view.elements() == 0 || held.failure || held.type == tensor.type()) return nullptr;
  CallArgument arguments[] = {tensor, tensor.dtype};
  std::shared_ptr<Storage> copy = runner_.call(kIdentity, arguments, {}, nullptr, {})[0].storage;
  tensor = {copy.get(), View::contiguous(tensor.view.sizes), tensor.dtype};
  return copy;
}

// The new value is made beside the old one, so that a failure leaves that as it was.
void Transfers::resize(Storage& storage, int64_t nbytes) {
  if (Trace::current()) raise<NotImplemented>("[capture] a tensor's storage is resized while a step is recorded; give it its size before");
  if (nbytes < 0) raise<InvalidArgument>("[resize_] expected a storage of at least 0 bytes, got {}", nbytes);
  for (;;) {
    const Held before = storage.held();
    Held after;
    const int64_t kept = before.array ? std::min(nbytes / byte_size(before.type.dtype), before.type.elements()) : 0;
    if (kept > 0) {
      const auto source = hold(before.type, before.array), target = Storage::create(nbytes);
      CallArgument arguments[] = {TensorRef{source.get(), View::contiguous({kept}), before.type.dtype}, before.type.dtype};
      std::optional<TensorRef> into[] = {TensorRef{target.get(), View::contiguous({kept}), before.type.dtype}};
      runner_.call(kIdentity, arguments, into, nullptr, {});
      after = target->held();
    }
    if (storage.replace(before, nbytes, after.type, after.array)) return;
    // Another thread has written to it meanwhile.
  }
}

}  // namespace flambeau::runtime
