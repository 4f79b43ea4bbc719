// Data between the host and storages, and between storages.
//
// Threads: every function may be called from any thread.
#pragma once

#include <memory>

#include "runtime/strict_runner.h"

namespace flambeau::runtime {

class Transfers {
 public:
  Transfers(const Devices& devices, ProgramCache& programs, Launcher& launcher, StrictRunner& runner)
      : devices_(devices), programs_(programs), launcher_(launcher), runner_(runner) {}

  // Copies dense row-major elements of the tensor's own type and shape in (during the call) and out (waiting; raises the failed checks that
  // concern the value).
  void upload(const TensorRef& destination, const void* data);
  void download(const TensorRef& source, void* data);
  // Makes `tensor` one whose storage holds exactly its elements, in its type and shape; a copy, which is returned, where it is not. One that
  // has no value yet gets zeros on `mesh`.
  std::shared_ptr<Storage> dense(TensorRef& tensor, const DeviceMesh* mesh);
  // `storage` gets `nbytes`, keeping the bytes that fit; a resize that fails changes nothing.
  void resize(Storage& storage, int64_t nbytes);

 private:
  std::shared_ptr<const Array> gathered(const TensorRef& source, const DeviceMesh* mesh);

  const Devices& devices_;
  ProgramCache& programs_;
  Launcher& launcher_;
  StrictRunner& runner_;
};

// A new storage that holds `array`.
std::shared_ptr<Storage> hold(const Type& type, std::shared_ptr<const Array> array);

}  // namespace flambeau::runtime
