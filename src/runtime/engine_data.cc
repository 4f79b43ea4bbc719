// The engine: data between the host and storages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/engine.h"
#include "runtime/internal_ops.h"

namespace flambeau::runtime {
namespace {

bool shows_all(const TensorRef& tensor) {
  return tensor.view.offset == 0 && tensor.view.is_contiguous() &&
         tensor.view.elements() * byte_size(tensor.dtype) >= tensor.storage->nbytes();
}

std::shared_ptr<Storage> hold(const Type& type, std::shared_ptr<const Array> array) {
  std::shared_ptr<Storage> storage = Storage::create(type.bytes());
  storage->set(type, std::move(array));
  return storage;
}

}  // namespace

std::shared_ptr<Storage> Engine::make_sharded(const Type& type, const hlo::Sharding& sharding, const FillBox& fill) {
  if (!client_) return hold(type, array_of(type, sharding, nullptr));
  if (mesh_) return hold(type, fill_array(*client_, *mesh_, type, sharding, fill));
  std::vector<char> whole(static_cast<size_t>(type.bytes()));
  fill({Dims(type.dims.size(), 0), type.dims}, whole.data());
  return hold(type, array_of(type, {}, whole.data()));
}

std::shared_ptr<Storage> Engine::make_sharded(const Type& type, const hlo::Sharding& sharding, const void* data) {
  return hold(type, array_of(type, sharding, data));
}

// The same without a storage. Where the target is not here, nothing is read from `data`.
std::shared_ptr<const Array> Engine::array_of(const Type& type, const hlo::Sharding& sharding, const void* data) {
  if (client_) return upload_array(*client_, mesh_.get(), type, sharding, data);
  if (mesh_) check_divides(mesh_->mesh, sharding, type);
  return std::make_shared<const Array>(std::vector<std::unique_ptr<pjrt::Buffer>>(), mesh_ ? sharding : hlo::Sharding{});
}

hlo::Sharding Engine::sharding_of(const TensorRef& tensor) {
  const Held held = tensor.storage->held();
  if (!held.array || held.type != tensor.type() || !tensor.view.is_contiguous()) return {};
  return held.array->sharding();
}

void Engine::upload(const TensorRef& destination, const void* data) {
  Type type = destination.type();
  if (type.elements() == 0) return;
  if (current()) {
    // A constant of the program; comparing the recordings finds one that changes.
    CallArgument arguments[] = {type.dims, type.dtype, std::string(static_cast<const char*>(data), static_cast<size_t>(type.bytes()))};
    std::optional<TensorRef> into[] = {destination};
    call(kLiteral, arguments, into);
    return;
  }
  std::shared_ptr<Storage> target = shows_all(destination) ? destination.storage->shared_from_this() : Storage::create(type.bytes());
  hlo::Sharding sharding;
  // State keeps its dimensions and layout, also when it is replaced through a reshaped view.
  if (const Held held = target->held(); held.array && held.type.dtype == type.dtype && held.type.elements() == type.elements()) {
    type = held.type;
    sharding = held.array->sharding();
  }
  target->set(type, array_of(type, sharding, data));
  if (target.get() == destination.storage) return;
  CallArgument arguments[] = {TensorRef{target.get(), View::contiguous(type.dims), type.dtype}, type.dtype};
  std::optional<TensorRef> into[] = {destination};
  call(kIdentity, arguments, into);
}

void Engine::download(const TensorRef& source, void* data) {
  Type type = source.type();
  if (type.elements() == 0) return;
  if (current())
    raise<InvalidArgument>("[capture] the value of a tensor {} is read on the host while a step is recorded; return the tensor from the "
                           "captured function and read it afterwards", type.to_string());
  const Held held = source.storage->held();
  if (held.failure) throw Error(*held.failure);
  if (held.recording != 0)
    raise("[capture] this tensor was made while a step was recorded and was not returned by it, so it has no value outside");
  std::shared_ptr<const Array> array = held.array;
  const bool dense = array && held.type.dtype == type.dtype && held.type.elements() == type.elements() && source.view.offset == 0 &&
                     source.view.is_contiguous();
  if (dense) type = held.type;
  client();  // raises where nothing can be read
  if (!array) {
    std::memset(data, 0, static_cast<size_t>(type.bytes()));
    return;
  }
  if (!dense || (mesh_ && !held_whole(*mesh_, array->sharding(), type.dims))) array = gathered(source);
  download_array(mesh_.get(), *array, type, data);
  if (array->checks()) raise_failed(*array->checks());
}

std::shared_ptr<const Array> Engine::gathered(const TensorRef& source) {
  Trace trace(TraceKind::Strict);
  CallArgument arguments[] = {source, source.dtype};
  const ValueId outputs[] = {*trace.append(kIdentity, arguments)[0]};
  const hlo::Sharding shardings[] = {{}};
  const std::vector<std::shared_ptr<const Array>> externals = trace.take_values();
  std::shared_ptr<const Program> copy = program(trace, outputs, {}, "eager", std::span(shardings).first(mesh_ ? 1 : 0));
  return launch(*copy, {externals, {}, trace.numbers(), {}}).outputs[0];  // who asks for it waits for it
}

void Engine::materialise(const TensorRef& tensor) {
  Storage& storage = *tensor.storage;
  const Held before = storage.held();
  if (before.array || before.failure || before.recording != 0 || storage.nbytes() == 0) return;
  Type type{tensor.dtype, {storage.nbytes() / byte_size(tensor.dtype)}};
  if (shows_all(tensor)) type.dims = tensor.view.sizes;
  const std::vector<char> zeros(client_ ? static_cast<size_t>(storage.nbytes()) : 0);
  storage.replace(before, storage.nbytes(), type, array_of(type, {}, zeros.data()));  // unless another thread has written to it
}

std::shared_ptr<Storage> Engine::dense(TensorRef& tensor) {
  materialise(tensor);
  if (const Held held = tensor.storage->held(); tensor.view.elements() == 0 || held.failure || held.type == tensor.type()) return nullptr;
  CallArgument arguments[] = {tensor, tensor.dtype};
  std::shared_ptr<Storage> copy = call(kIdentity, arguments)[0].storage;
  tensor = {copy.get(), View::contiguous(tensor.view.sizes), tensor.dtype};
  return copy;
}

// The new value is made beside the old one, so that a failure leaves that as it was.
void Engine::resize(Storage& storage, int64_t nbytes) {
  if (current()) raise<NotImplemented>("[capture] a tensor's storage is resized while a step is recorded; give it its size before");
  if (nbytes < 0) raise<InvalidArgument>("[resize_] expected a storage of at least 0 bytes, got {}", nbytes);
  for (;;) {
    const Held before = storage.held();
    Held after;
    const int64_t kept = before.array ? std::min(nbytes / byte_size(before.type.dtype), before.type.elements()) : 0;
    if (kept > 0) {
      const auto source = hold(before.type, before.array), target = Storage::create(nbytes);
      CallArgument arguments[] = {TensorRef{source.get(), View::contiguous({kept}), before.type.dtype}, before.type.dtype};
      std::optional<TensorRef> into[] = {TensorRef{target.get(), View::contiguous({kept}), before.type.dtype}};
      call(kIdentity, arguments, into);
      after = target->held();
    }
    if (storage.replace(before, nbytes, after.type, after.array)) return;
    // Another thread has written to it meanwhile.
  }
}

}  // namespace flambeau::runtime
