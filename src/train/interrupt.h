// SIGINT and SIGTERM as a wish to end: the run finishes its step, saves and reports. A second signal of either kind ends it at once.
#pragma once

namespace flambeau::train {

// Whether a signal has come since the newest guard was made.
bool interrupted();

// Takes over both signals while it lives. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  // The signal that came, or 0.
  int signal() const;
};

}  // namespace flambeau::train
