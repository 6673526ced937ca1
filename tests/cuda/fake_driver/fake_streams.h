// tests/cuda/fake_driver/fake_streams.h
// Streams of the driver without a GPU. They are queues whose operations one thread executes, each
// time from a random stream whose first operation can run.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/fake_driver/fake_events.h"

namespace rp::test {

struct FakeOperation {
  enum class Kind { kCopy, kSet, kRecord, kWait, kWrite, kWaitValue, kCall };
  Kind kind = Kind::kCopy;
  void* to = nullptr;
  const void* from = nullptr;
  std::uint64_t value = 0;
  EventCell* cell = nullptr;
  CUhostFn function = nullptr;
};

}  // namespace rp::test

// The object that the driver's handle points to. Belongs to a FakeStreams and is guarded by its
// lock.
struct CUstream_st {
  CUcontext context;
  std::deque<rp::test::FakeOperation> operations{};
  std::vector<std::string> log{};
  bool is_held = false;
  bool is_running = false;  // it is executing its first operation
  bool is_destroyed = false;
};

namespace rp::test {

class FakeStreams {
 public:
  FakeStreams(unsigned seed, int max_delay_us);
  // Drops operations that have not run.
  ~FakeStreams();
  FakeStreams(const FakeStreams&) = delete;
  FakeStreams& operator=(const FakeStreams&) = delete;

  [[nodiscard]] CUstream create(CUcontext context);
  // Operations in the stream are executed up to its next wait.
  void destroy(CUstream stream);
  void enqueue(CUstream stream, const FakeOperation& operation, std::string text);
  // Records the event again and enqueues the recording, in one step.
  void enqueue_record(CUstream stream, const CUevent_st& event);
  [[nodiscard]] bool is_idle(CUstream stream);
  // Returns when all streams of the context are idle, as the driver does before it frees memory.
  // Ends a test whose streams never become idle.
  void wait_until_idle(CUcontext context);

  // From now on no operation runs.
  void stop();

  [[nodiscard]] std::vector<std::vector<std::string>> log();
  void clear_log();
  void hold(int stream, bool is_held);

  // Returns true in a host function, where the driver must not be called.
  [[nodiscard]] static bool is_in_host_function();

 private:
  [[nodiscard]] static bool can_run(CUstream_st& stream);
  static void execute(const FakeOperation& operation);
  void run();

  const int max_delay_us_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace rp::test
