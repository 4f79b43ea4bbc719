#include "runtime/launch_checks.h"

#include <utility>

#include "base/error.h"

namespace flambeau::runtime {

static std::atomic<uint64_t> next_number{0};

namespace {

std::exception_ptr exception_of(const ops::CheckError& error) {
  if (error.raises == ops::Raises::IndexError) return std::make_exception_ptr(OutOfRange(error.message));
  return std::make_exception_ptr(InvalidArgument(error.message));
}

template <class E>
[[noreturn]] void raise_counted(const E& error, size_t more) {
  raise<E>("{}\n(and {} more failure{} since the last wait)", error.what(), more, more == 1 ? "" : "s");
}

}  // namespace

void raise_with_count(const std::exception_ptr& error, size_t more) {
  if (more == 0) std::rethrow_exception(error);
  try {
    std::rethrow_exception(error);
  } catch (const OutOfRange& e) {
    raise_counted(e, more);
  } catch (const InvalidArgument& e) {
    raise_counted(e, more);
  } catch (const pjrt::OutOfMemory& e) {
    raise_counted(e, more);
  } catch (const PluginError& e) {
    raise_counted(e, more);
  } catch (const std::exception& e) {
    raise_counted(Error(e.what()), more);
  }
}

LaunchChecks::LaunchChecks(std::unique_ptr<pjrt::Buffer> flags, std::shared_ptr<const std::vector<ops::CheckError>> errors)
    : flags_(std::move(flags)), errors_(std::move(errors)), number_(next_number++) {}

void LaunchChecks::read() {
  std::lock_guard lock(mutex_);
  if (!flags_) return;
  const std::unique_ptr<pjrt::Buffer> flags = std::move(flags_);
  std::vector<uint8_t> failed(errors_->size());
  try {
    flags->to_host(failed.data());
  } catch (const Error& error) {
    try {
      flags->ready().await();
      failure_ = std::make_exception_ptr(
          Error(fmt::format("[check] whether '{}' holds could not be read: {}", errors_->front().message, error.what())));
    } catch (const Error&) {
      // The launch failed, and who waits for it is told so.
    }
    settled_ = !failure_;
    return;
  }
  for (size_t i = 0; i < failed.size() && !failure_; ++i)
    if (failed[i]) failure_ = exception_of((*errors_)[i]);
  settled_ = !failure_;
}

std::exception_ptr LaunchChecks::take_failure() {
  std::lock_guard lock(mutex_);
  if (!flags_) settled_ = true;
  return std::exchange(failure_, nullptr);
}

void raise_failed(const CheckList& checks) {
  std::exception_ptr first;
  size_t more = 0;
  for (const auto& check : checks) {
    check->read();
    const std::exception_ptr failure = check->take_failure();
    if (!failure) continue;
    if (first)
      ++more;
    else
      first = failure;
  }
  if (first) raise_with_count(first, more);
}

}  // namespace flambeau::runtime
