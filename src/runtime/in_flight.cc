#include "runtime/in_flight.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"

namespace flambeau::runtime {
namespace {

// The launches that are remembered, and those among them with checks, whose flags are buffers on the device.
constexpr size_t kMostLaunches = 4096, kMostChecked = 256;
constexpr size_t kMostFailures = 64;

bool has_ended(const pjrt::Event& event) {
  try {
    return event.ready();
  } catch (const Error&) {
    return true;
  }
}

void wait_for(std::span<const pjrt::Event> events) {
  for (const pjrt::Event& event : events) {
    try {
      event.await();
    } catch (const Error&) {
      // Remembered when the launch is settled.
    }
  }
}

}  // namespace

void InFlight::add(InFlightLaunch launch) {
  std::unique_lock lock(mutex_);
  checked_ += launch.checks ? 1 : 0;
  launches_.push_back(std::move(launch));
  settle_ended();
  while (launches_.size() > kMostLaunches || checked_ > kMostChecked) {
    const std::vector<pjrt::Event> oldest = launches_.front().ready;
    lock.unlock();
    wait_for(oldest);
    lock.lock();
    settle_ended();
  }
}

// Takes out the oldest launches, as far as they have ended; the lock is held.
void InFlight::settle_ended() {
  while (!launches_.empty() && std::ranges::all_of(launches_.front().ready, has_ended)) {
    settle(launches_.front());
    checked_ -= launches_.front().checks ? 1 : 0;
    launches_.pop_front();
  }
}

void InFlight::settle(const InFlightLaunch& launch) {
  try {
    for (const pjrt::Event& event : launch.ready) event.await();
  } catch (const Error&) {
    return remember({std::current_exception(), nullptr});
  }
  if (!launch.checks) return;
  launch.checks->read();
  if (!launch.checks->settled()) remember({nullptr, launch.checks});
}

void InFlight::remember(Failure failure) {
  if (failures_.size() < kMostFailures)
    failures_.push_back(std::move(failure));
  else
    ++more_failures_;
}

void InFlight::wait_for_all() {
  std::unique_lock lock(mutex_);
  std::vector<pjrt::Event> events;
  for (const InFlightLaunch& launch : launches_) events.insert(events.end(), launch.ready.begin(), launch.ready.end());
  lock.unlock();
  wait_for(events);
  lock.lock();
  settle_ended();
  const std::vector<Failure> failures = std::exchange(failures_, {});
  size_t more = std::exchange(more_failures_, 0);
  lock.unlock();

  std::exception_ptr first;
  for (const Failure& failure : failures) {
    const std::exception_ptr error = failure.checks ? failure.checks->take_failure() : failure.error;
    if (!error) continue;  // its reader has raised it
    if (first)
      ++more;
    else
      first = error;
  }
  if (first) raise_with_count(first, more);
  if (more > 0) raise("[synchronize] {} launches failed whose reasons are no longer known", more);
}

}  // namespace flambeau::runtime
