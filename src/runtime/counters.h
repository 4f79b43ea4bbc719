// What the engine has done since it started.
#pragma once

#include <atomic>
#include <cstdint>

namespace flambeau::runtime {

struct Counters {
  std::atomic<int64_t> ops_recorded{0};
  std::atomic<int64_t> programs_compiled{0};
  std::atomic<int64_t> programs_reused{0};
  std::atomic<int64_t> executions{0};
  std::atomic<int64_t> host_waits{0};  // of ops whose results are as long as the data says
  std::atomic<int64_t> donations{0};  // arrays that executions were given to take over
  std::atomic<int64_t> compile_microseconds{0};
};

}  // namespace flambeau::runtime
