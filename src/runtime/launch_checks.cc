#include "runtime/launch_checks.h"

#include <utility>

#include "base/error.h"

namespace flambeau::runtime {

static std::atomic<uint64_t> next_number{0};

std::string with_count(std::string text, size_t more) {
  return more == 0 ? text : fmt::format("{}\n(and {} more failure{} since the last wait)", text, more, more == 1 ? "" : "s");
}

LaunchChecks::LaunchChecks(std::unique_ptr<pjrt::Buffer> flags, std::shared_ptr<const std::vector<std::string>> messages)
    : flags_(std::move(flags)), messages_(std::move(messages)), number_(next_number++) {}

void LaunchChecks::read() {
  std::lock_guard lock(mutex_);
  if (!flags_) return;
  const std::unique_ptr<pjrt::Buffer> flags = std::move(flags_);
  std::vector<uint8_t> failed(messages_->size());
  try {
    flags->to_host(failed.data());
  } catch (const Error& error) {
    try {
      flags->ready().await();
      failure_ = fmt::format("[check] whether '{}' holds could not be read: {}", messages_->front(), error.what());
    } catch (const Error&) {
      // The launch failed, and who waits for it is told so.
    }
    settled_ = !failure_;
    return;
  }
  for (size_t i = 0; i < failed.size() && !failure_; ++i)
    if (failed[i]) failure_ = (*messages_)[i];
  settled_ = !failure_;
}

std::optional<std::string> LaunchChecks::take_failure() {
  std::lock_guard lock(mutex_);
  if (!flags_) settled_ = true;
  return std::exchange(failure_, std::nullopt);
}

void raise_failed(const CheckList& checks) {
  std::optional<std::string> first;
  size_t more = 0;
  for (const auto& check : checks) {
    check->read();
    std::optional<std::string> failure = check->take_failure();
    if (!failure) continue;
    if (first)
      ++more;
    else
      first = std::move(failure);
  }
  if (first) throw InvalidArgument(with_count(*first, more));
}

}  // namespace flambeau::runtime
