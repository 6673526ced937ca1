// common/mutex.h
// A mutex and a condition variable that clang's thread-safety analysis understands; std::mutex is invisible to it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__clang__)
#define RP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define RP_THREAD_ANNOTATION(x)
#endif
#define RP_GUARDED_BY(x) RP_THREAD_ANNOTATION(guarded_by(x))
#define RP_REQUIRES(...) RP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define RP_EXCLUDES(...) RP_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace rp {

class RP_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() RP_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() RP_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for a scope.
class RP_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) RP_THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RP_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // May return without a reason, so it must be called in a loop that checks the condition.
  void wait(Mutex& mutex) RP_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // The same, for at most so long.
  void wait_for_ns(Mutex& mutex, std::int64_t ns) RP_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, std::chrono::nanoseconds(ns));
    lock.release();
  }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace rp
