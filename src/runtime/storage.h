// The record behind every device storage.
//
// A Storage has a logical size in bytes and a current value: one immutable, dense, row-major array of some element type and shape
// (the base), on one device or spread over a mesh (array.h). Writing gives it another array. Tensors are views over it; a view of
// another element type reads the base bit by bit. A storage without an array is uninitialised, which reads as zeros, or has no
// elements.
//
// A launch may take an array over for its results (donation). Handover decides that: nobody else sees an array that is given away.
//
// Threads: every function may be called from any thread. One lock guards the values of all storages and is held for microseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hlo/graph.h"
#include "runtime/array.h"
#include "runtime/views.h"

namespace flambeau::runtime {

// What a storage holds at one moment.
struct Held {
  hlo::Type type = {};                                   // of the array, when there is one
  std::shared_ptr<const Array> array = nullptr;          // null: uninitialised
  uint64_t recording = 0;                                // the trace it was made in; until that ends it has no value elsewhere
  std::shared_ptr<const std::string> failure = nullptr;  // why there is no array: raised by readers
};

class Storage : public std::enable_shared_from_this<Storage> {
 public:
  // `recording`: the trace that makes it; 0: none.
  static std::shared_ptr<Storage> create(int64_t nbytes, uint64_t recording = 0);
  ~Storage();

  const uint64_t id;  // never reused, unlike addresses
  int64_t nbytes() const { return nbytes_.load(std::memory_order_relaxed); }

  // What it holds. Waits while a launch that takes its array over is being made.
  Held held() const;
  uint64_t recording() const;
  // It holds `array` from now on.
  void set(const hlo::Type& type, std::shared_ptr<const Array> array);
  // Its size becomes `nbytes` and its value that of `array`, provided that it still holds what `before` says; whether it does.
  bool replace(const Held& before, int64_t nbytes, const hlo::Type& type, std::shared_ptr<const Array> array);

  std::shared_ptr<Storage> self;  // the reference that a c10::DataPtr stands for; its owner's alone

 private:
  friend class Handover;
  friend std::vector<Held> held(std::span<const Storage* const> storages);
  Storage(int64_t nbytes, uint64_t recording);

  // Guarded by the lock.
  Held value_;
  bool given_ = false;  // a launch has taken the array; it sets the next one, or gives this one back

  std::atomic<int64_t> nbytes_;
};

// What several storages hold, all at one moment. Waits as Storage::held() does.
std::vector<Held> held(std::span<const Storage* const> storages);

// How a storage's value lies on a mesh, when it has one of these dimensions.
std::optional<hlo::Sharding> layout_of(const Storage& storage, const hlo::Dims& dims);

// A new value of a storage.
struct Assignment {
  std::shared_ptr<Storage> storage;
  hlo::Type type;
  std::shared_ptr<const Array> array;  // null: no elements
};

// The arrays that one launch takes over.
//
// An array is given away when its storage and the launch hold the only references. offer() takes the storage's reference in the same step,
// so a thread that reads the storage later waits for the launch, and one that read it before keeps the array from being given.
// Between offer() and commit() or fail() the calling thread reads none of these storages.
class Handover {
 public:
  Handover() = default;
  ~Handover();  // fails when neither was called
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  struct Offer {
    std::shared_ptr<Storage> storage;
    const std::shared_ptr<const Array>* array;  // the launch's only reference
  };
  // By offer: whether its array is given away.
  std::vector<bool> offer(std::span<const Offer> offers);
  // The launch was made: storages get their new values, all at one moment.
  void commit(std::span<const Assignment> assignments);
  // It failed: storages get back what they gave; one whose array the launch consumed all the same raises `reason` when it is read.
  void fail(const std::string& reason);

 private:
  std::vector<std::pair<std::shared_ptr<Storage>, Held>> given_;
};

// A tensor as the runtime sees it.
struct TensorRef {
  Storage* storage = nullptr;
  View view;
  DType dtype = DType::F32;

  hlo::Type type() const { return {dtype, view.sizes}; }
};

// Whether it shows all elements of its storage, in order.
bool shows_all(const TensorRef& tensor);

// Logical bytes of live storages, and how many there are.
struct MemoryUse {
  int64_t allocated = 0, peak = 0;         // bytes now, and the most since the start or reset_peak_memory()
  int64_t allocations = 0, frees = 0;      // storages made and given back since the start
  int64_t peak_storages = 0;               // the most at one time
  int64_t total = 0;                       // bytes ever allocated
};
MemoryUse memory_use();
void reset_peak_memory();

}  // namespace flambeau::runtime
