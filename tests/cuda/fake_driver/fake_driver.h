// tests/cuda/fake_driver/fake_driver.h
// A CUDA driver without a GPU. Its memory is this process's memory, and its streams are queues. One
// thread executes their operations, each time from a random stream whose next operation can run. So
// everything that may happen in any order on a GPU happens here sooner or later.
//
// It keeps these rules. Operations within a stream are in order. A wait for an event waits for the
// recording that was the last one when the wait was enqueued, or for nothing if there was none.
// Host functions run in a thread of the driver. Copies read and write when they run. Events of
// other processes work if share_between_processes() was called before the fork: they are in shared
// memory, and those of a dead process are never completed.
//
// It refuses what the driver refuses: calls from a host function (the test ends) and from threads
// without a current context; copies and words in memory that is unknown or registered in several
// pieces; registering memory twice; writable registration of memory that this process may only
// read; words that are not aligned or have the processor's address; events of another context, and
// opening an event of the same process. Freeing memory waits until all streams of the context are
// idle. A context represents a process: each worker that is a thread has its own.
//
// Only one may exist in a process at a time. CudaDevices must be destroyed before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "tests/cuda/fake_driver/fake_registrations.h"

namespace rp::test {

struct FakeDriverOptions {
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;  // of each GPU
  int num_gpus = 1;
  unsigned seed = 1;
  int max_delay_us = 0;  // before each operation, at random
  bool has_word_operations = true;
  bool registers_read_only = true;
  RefusalOptions refusals{};
};

class FakeDriver {
 public:
  // Must be called before fork(). The events of the processes are then in shared memory, and each
  // process knows what the others register.
  static void share_between_processes();

  struct State;  // defined by the implementation

  explicit FakeDriver(const FakeDriverOptions& options = {});
  // Streams that are still waiting are dropped.
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  [[nodiscard]] const CudaDriver& table() const;

  // Makes the driver's function of this name, such as "cuMemcpyAsync", fail once, at its `call`-th call
  // from now on (1: the next).
  void fail(const std::string& function, CUresult result, int call = 1);
  // Must be called before each launch of the kernel of this name. At its first launch in the
  // stream's context the kernel is loaded. For this the driver may wait until all streams of the
  // context are idle, and this one does.
  static void load(CUstream stream, const std::string& kernel);
  // Returns the number of kernels that are loaded in the stream's context.
  [[nodiscard]] static std::size_t num_loaded(CUstream stream);

  // Simulates a failed GPU, as after a kernel that wrote to memory that it must not access. No
  // enqueued operation runs any more, not even host functions, and every call reports the failure.
  void fault(CUresult result);
  // Simulates the end of the process: no enqueued operation runs any more. Must be called before
  // memory is unmapped that streams may still wait for or copy.
  void stop();
  // Returns how often the function was called.
  [[nodiscard]] int num_calls(const std::string& function) const;

  // Returns what was enqueued, by stream in the order of their creation, each in the order of
  // enqueueing: "copy 4096", "record e3", "wait e3", "write 5", "wait >= 5", "call". Events are
  // numbered in the order of their creation.
  [[nodiscard]] std::vector<std::vector<std::string>> log() const;
  void clear_log();

  // Stops the stream of this number (in the order of creation) until let_go() is called.
  void hold(int stream);
  void let_go(int stream);

  // From now on every registration of host memory is refused; false: no longer for this reason.
  void refuse_registrations(bool refuses);
  // Returns how often a registration included memory that was registered already.
  [[nodiscard]] int num_registered_twice() const;

  // Return the bytes that are currently registered and allocated.
  [[nodiscard]] std::uint64_t registered_bytes() const;
  [[nodiscard]] std::uint64_t taken_bytes() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace rp::test
