// SIGINT and SIGTERM as a wish to end: the run finishes its step, saves and reports. A second signal of either kind ends it at once.
#pragma once

namespace flambeau::train {

// The signal that came since the newest guard was made, or 0; and whether one did.
int received_signal();
bool interrupted();
// What a process ends with, as shells have it: 0, or 128 + the signal that ended it.
int exit_code(int signal);

// Takes over both signals while it lives. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

}  // namespace flambeau::train
