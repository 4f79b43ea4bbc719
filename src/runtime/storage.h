// The record behind every device storage.
//
// A Storage has a logical size in bytes and a current value: one immutable, dense, row-major array of some element type and shape
// (the base), on one device or spread over a mesh (array.h). Writing gives it another array. Tensors are views over it; a view of
// another element type reads the base bit by bit. A storage without a value is uninitialised, which reads as zeros, or has no
// elements.
//
// The value is guarded by the storage_mutex(); nothing outside of src/runtime reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "hlo/graph.h"
#include "runtime/array.h"
#include "runtime/views.h"

namespace flambeau::runtime {

class Storage : public std::enable_shared_from_this<Storage> {
 public:
  static std::shared_ptr<Storage> create(int64_t nbytes);
  ~Storage();

  const uint64_t id;  // never reused, unlike addresses
  int64_t nbytes() const { return nbytes_; }
  void set_nbytes(int64_t nbytes);  // the account only; the engine resizes the value

  // Guarded by storage_mutex().
  hlo::Type type;                        // of the value, when there is one
  std::shared_ptr<const Array> value;    // null: uninitialised
  uint64_t recording = 0;                // the recording it was made in; until that ends it has no value elsewhere
  std::shared_ptr<const std::string> failure;  // why there is no value: raised by readers

  // How its value lies on a mesh, when it has one of these dimensions. Takes the lock.
  std::optional<hlo::Sharding> layout_of(const hlo::Dims& dims) const;

  std::shared_ptr<Storage> self;  // the reference that a c10::DataPtr stands for

 private:
  explicit Storage(int64_t nbytes);
  int64_t nbytes_;
};

// Guards the values of all storages; held for microseconds.
std::mutex& storage_mutex();

// A tensor as the runtime sees it.
struct TensorRef {
  Storage* storage = nullptr;
  View view;
  DType dtype = DType::F32;

  hlo::Type type() const { return {dtype, view.sizes}; }
};

// Logical bytes of live storages.
struct MemoryUse {
  int64_t allocated = 0, peak = 0, allocations = 0, frees = 0;
};
MemoryUse memory_use();
void reset_peak_memory();

}  // namespace flambeau::runtime
