// The fake plugin's side of the C API's opaque types. Internal to src/pjrt/testing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/testing/fake_plugin.h"
#include "pjrt/testing/fake_program.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace flambeau::pjrt::fake {

// Counts the objects of one kind while they live.
template <int Kind>
struct Counted {
  static inline std::atomic<int64_t> count{0};
  Counted() { ++count; }
  Counted(const Counted&) { ++count; }
  ~Counted() { --count; }
};
enum Kind { kClient, kTopology, kExecutable, kBuffer, kEvent, kError };

struct Status {
  int code = 0;
  std::string text;
};

// Something that will have happened: shared by the events that stand for it.
class Completion {
 public:
  void finish(Status status) {
    std::vector<std::function<void(const Status&)>> waiting;
    {
      std::lock_guard lock(mutex_);
      if (status_) return;
      status_ = std::move(status);
      waiting.swap(callbacks_);
    }
    changed_.notify_all();
    for (const auto& callback : waiting) callback(*status_);
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return status_.has_value();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return status_.has_value(); });
    return *status_;
  }
  void on_done(std::function<void(const Status&)> callback) {
    {
      std::lock_guard lock(mutex_);
      if (!status_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback(*status_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> status_;
  std::vector<std::function<void(const Status&)>> callbacks_;
};

inline std::shared_ptr<Completion> finished(Status status = {}) {
  auto completion = std::make_shared<Completion>();
  completion->finish(std::move(status));
  return completion;
}

// The failure of this call, if `fault` strikes at it.
Status strike(Fault Faults::* fault);
// The same for a compilation with these options, if Faults::unknown_option is among them.
Status strike_unknown_option(std::string_view options);

// Whether Faults::true_flags is set.
bool true_flags();

// The completion of a launch: at once, with the failure if execute_late strikes, unless launches are held.
std::shared_ptr<Completion> launch();

// An error that the caller owns; null for code 0.
PJRT_Error* error(Status status);

// Each fills its part of the table.
void add_events(PJRT_Api& api);
void add_clients(PJRT_Api& api);
void add_buffers(PJRT_Api& api);
void add_executables(PJRT_Api& api);

}  // namespace flambeau::pjrt::fake

namespace fake = flambeau::pjrt::fake;

struct PJRT_DeviceDescription {
  int id, process_index;
  std::string text;
};
struct PJRT_Device {
  PJRT_DeviceDescription description;
  PJRT_Client* client;
};
struct PJRT_Client : fake::Counted<fake::kClient> {
  std::string platform = "fake";
  std::vector<std::unique_ptr<PJRT_Device>> devices;
  std::vector<PJRT_Device*> all, addressable;
};
struct PJRT_TopologyDescription : fake::Counted<fake::kTopology> {
  std::vector<std::unique_ptr<PJRT_DeviceDescription>> devices;
  std::vector<PJRT_DeviceDescription*> all;
};
struct PJRT_Event : fake::Counted<fake::kEvent> {
  explicit PJRT_Event(std::shared_ptr<fake::Completion> c) : completion(std::move(c)) {}
  std::shared_ptr<fake::Completion> completion;
};
struct PJRT_Buffer : fake::Counted<fake::kBuffer> {
  fake::FakeType type;
  std::vector<char> bytes;
  PJRT_Device* device = nullptr;
  bool deleted = false;
  std::shared_ptr<fake::Completion> ready;
  std::shared_ptr<fake::Completion> host_released;  // of a zero-copy upload: when the data goes

  void drop_data() {
    deleted = true;
    bytes = {};
    if (auto released = std::exchange(host_released, nullptr)) released->finish({});
  }
};
struct PJRT_Executable : fake::Counted<fake::kExecutable> {
  std::string text, options;
  fake::FakeProgram program;
  std::vector<PJRT_Buffer_Type> types;
  std::vector<int64_t> dims;
  std::vector<size_t> ranks;
};
struct PJRT_LoadedExecutable {
  PJRT_Executable executable;         // which counts it
  std::vector<PJRT_Device*> devices;  // addressable ones
  PJRT_Client* client = nullptr;
};
