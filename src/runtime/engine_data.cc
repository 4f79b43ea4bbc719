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
  std::lock_guard lock(storage_mutex());
  storage->type = type;
  storage->value = std::move(array);
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
  std::lock_guard lock(storage_mutex());
  const Storage& storage = *tensor.storage;
  if (!storage.value || storage.type != tensor.type() || !tensor.view.is_contiguous()) return {};
  return storage.value->sharding();
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
  {
    std::lock_guard lock(storage_mutex());  // state keeps its dimensions and layout, also when it is replaced through a reshaped view
    if (target->value && target->type.dtype == type.dtype && target->type.elements() == type.elements()) {
      type = target->type;
      sharding = target->value->sharding();
    }
  }
  std::shared_ptr<const Array> array = array_of(type, sharding, data);
  {
    std::lock_guard lock(storage_mutex());
    target->type = type;
    target->value = std::move(array);
    target->recording = 0;
    target->failure = nullptr;
  }
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
  std::shared_ptr<const Array> array;
  bool dense = false;
  {
    std::lock_guard lock(storage_mutex());
    const Storage& storage = *source.storage;
    if (storage.failure) throw Error(*storage.failure);
    if (storage.recording != 0)
      raise("[capture] this tensor was made while a step was recorded and was not returned by it, so it has no value outside");
    array = storage.value;
    dense = array && storage.type.dtype == type.dtype && storage.type.elements() == type.elements() && source.view.offset == 0 &&
            source.view.is_contiguous();
    if (dense) type = storage.type;
  }
  client();  // raises where nothing can be read
  if (!array) {
    std::memset(data, 0, static_cast<size_t>(type.bytes()));
    return;
  }
  if (!dense || (mesh_ && !held_whole(*mesh_, array->sharding(), type.dims))) array = gathered(source);
  download_array(mesh_.get(), *array, type, data);
  raise_failed_checks();
}

std::shared_ptr<const Array> Engine::gathered(const TensorRef& source) {
  Trace trace(TraceKind::Strict);
  CallArgument arguments[] = {source, source.dtype};
  const ValueId outputs[] = {*trace.append(kIdentity, arguments)[0]};
  const hlo::Sharding shardings[] = {{}};
  std::vector<std::shared_ptr<const Array>> externals;
  for (const External& external : trace.externals()) externals.push_back(external.value);
  std::shared_ptr<const Program> copy = program(trace, outputs, {}, "eager", std::span(shardings).first(mesh_ ? 1 : 0));
  return launch(*copy, {externals, {}, trace.numbers(), {}})[0];
}

void Engine::materialise(const TensorRef& tensor) {
  {
    std::lock_guard lock(storage_mutex());
    if (tensor.storage->value || tensor.storage->nbytes() == 0 || tensor.storage->failure || tensor.storage->recording != 0) return;
  }
  std::vector<char> zeros(client_ ? static_cast<size_t>(tensor.storage->nbytes()) : 0);
  TensorRef all{tensor.storage, View::contiguous({tensor.storage->nbytes() / byte_size(tensor.dtype)}), tensor.dtype};
  if (shows_all(tensor)) all.view = tensor.view;
  struct Restore {
    Trace* recording = current();
    Restore() { set_current(nullptr); }
    ~Restore() { set_current(recording); }
  } restore;
  upload(all, zeros.data());
}

std::shared_ptr<Storage> Engine::dense(TensorRef& tensor) {
  materialise(tensor);
  {
    std::lock_guard lock(storage_mutex());
    const Storage& storage = *tensor.storage;
    if (tensor.view.elements() == 0 || storage.failure || storage.type == tensor.type()) return nullptr;
  }
  CallArgument arguments[] = {tensor, tensor.dtype};
  std::shared_ptr<Storage> copy = call(kIdentity, arguments)[0].storage;
  tensor = {copy.get(), View::contiguous(tensor.view.sizes), tensor.dtype};
  return copy;
}

void Engine::resize(Storage& storage, int64_t nbytes) {
  if (current()) raise<NotImplemented>("[capture] a tensor's storage is resized while a step is recorded; give it its size before");
  std::shared_ptr<const Array> old;
  Type type;
  {
    std::lock_guard lock(storage_mutex());
    old = std::exchange(storage.value, nullptr);
    type = storage.type;
  }
  storage.set_nbytes(nbytes);
  if (!old || nbytes == 0) return;
  int64_t kept = std::min(nbytes / byte_size(type.dtype), type.elements());
  if (kept == 0) return;
  auto source = Storage::create(type.bytes());
  {
    std::lock_guard lock(storage_mutex());
    source->value = std::move(old);
    source->type = type;
  }
  CallArgument arguments[] = {TensorRef{source.get(), View::contiguous({kept}), type.dtype}, type.dtype};
  std::optional<TensorRef> into[] = {TensorRef{&storage, View::contiguous({kept}), type.dtype}};
  call(kIdentity, arguments, into);
}

}  // namespace flambeau::runtime
