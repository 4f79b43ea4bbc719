// Batches made ahead of time by a thread of their own.
//
// What is delivered is a function of the dataset, the options and the starting cursor, never of timing. A Loader or Prefetcher
// is used by one thread at a time; its own thread touches nothing but the dataset. Destruction stops that thread, whatever it
// waits for.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace flambeau::data {

// Calls `make` on a thread until it gives nothing or throws, and keeps up to `depth` (>= 1) results ready.
template <class T>
class Prefetcher {
 public:
  Prefetcher(std::function<std::optional<T>()> make, size_t depth)
      : make_(std::move(make)), depth_(depth), thread_([this] { run(); }) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    thread_.join();
  }

  // The next result, in order; nothing after the last. What `make` threw is thrown after the results before it, at every call.
  std::optional<T> next() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !ready_.empty() || finished_; });
    if (ready_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<T> result(std::move(ready_.front()));
    ready_.pop_front();
    room_.notify_one();
    return result;
  }

 private:
  void run() {
    std::exception_ptr error;
    try {
      while (wait_for_room()) {
        std::optional<T> result = make_();
        if (!result) break;
        std::lock_guard lock(mutex_);
        ready_.push_back(std::move(*result));
        filled_.notify_one();
      }
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    error_ = error;
    finished_ = true;
    filled_.notify_one();
  }

  bool wait_for_room() {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return ready_.size() < depth_ || stop_; });
    return !stop_;
  }

  std::function<std::optional<T>()> make_;
  const size_t depth_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable filled_, room_;
  std::deque<T> ready_;
  std::exception_ptr error_;
  bool finished_ = false, stop_ = false;
  std::thread thread_;  // last: it uses the rest
};

struct LoaderOptions {
  int64_t global_batch = 1;     // samples of one batch over all processes
  std::vector<bool> held = {};  // which of its rows this process reads; the others are padding. Empty: all
  bool repeat = true;        // go on with the next epoch; else end before the first batch that is not full
  size_t prefetch = 2;
};

class Loader {
 public:
  // `dataset` must outlive the loader. InvalidArgument when `held` does not have one entry a row.
  Loader(const Dataset& dataset, const LoaderOptions& options, Cursor start = {});

  // [global_batch, seq_len]; nothing when the data has ended.
  std::optional<Batch> next();
  // Where the batch after the last delivered one begins: a loader started from there goes on as this one will.
  Cursor cursor() const { return cursor_; }

 private:
  struct Item {
    Batch batch;
    Cursor after;
  };
  Cursor cursor_;
  Prefetcher<Item> prefetcher_;
};

// Each sample of a dataset once, in order (make it with shuffle off and keep_remainder on). The last batch is padded with rows
// of ignored labels, so that all batches have one shape, in every process the same number of them.
class ValidationLoader {
 public:
  ValidationLoader(const Dataset& dataset, int64_t global_batch, std::vector<bool> held = {});
  int64_t batches() const;
  std::optional<Batch> next();
  void restart() { sample_ = 0; }

 private:
  const Dataset& dataset_;
  Dataset::Epoch epoch_;
  int64_t global_batch_;
  std::vector<bool> held_;
  int64_t sample_ = 0;
};

}  // namespace flambeau::data
