// worker/local_queue.h
// Connects two threads of a worker by a queue that can be closed when the worker drops its work.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "common/mutex.h"
#include "hoststore/records/wait_record.h"

namespace rp {

template <typename T>
class LocalQueue {
 public:
  void push(T item) {
    MutexLock lock(mutex_);
    items_.push_back(std::move(item));
    changed_.notify_all();
  }

  // Removes and returns the oldest item; blocks until there is one. `waits`, the caller's record,
  // contains `wait` while the call blocks. Returns nothing once close() was called.
  [[nodiscard]] std::optional<T> pop(WaitRecord waits, const Wait& wait) {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) {
      waits.publish_once(wait);
      changed_.wait(mutex_);
    }
    if (closed_) return std::nullopt;
    waits.publish_none();
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<T> items_ RP_GUARDED_BY(mutex_);
  bool closed_ RP_GUARDED_BY(mutex_) = false;
};

}  // namespace rp
