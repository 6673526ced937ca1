// tests/cuda/fake_driver/fake_driver.h
// A CUDA driver without a GPU: its memory is this process's, its streams are queues that one thread works off, a random
// one of those whose next operation can run at a time. Everything that may happen in any order on a GPU does so here,
// sooner or later.
//
// What it keeps to: the order within a stream; a wait for an event means the recording that was the last when the wait
// was enqueued, and nothing if there was none; host functions run in a thread of the driver's; copies read and write
// when they run. Events of other processes work if share_between_processes() was called before the fork: they lie in
// shared memory, and those of a dead process are never completed.
//
// What it refuses, as the driver does: calls from a host function (the test ends) and from threads in which no context
// is current; copies and words of memory that it does not know or that is registered in several pieces, registering
// twice, writable pages of memory that this process may only read, words that are not aligned or have the processor's
// address; events of another context, and opening an event of one's own. Giving memory back waits until all streams of
// the context are idle. A context stands for a process: workers that are threads have one each.
//
// One at a time in a process. CudaDevices must end before it.
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
  // Before fork(): the processes' events then lie in the same memory, and each knows what the others register.
  static void share_between_processes();

  struct State;  // of the implementation

  explicit FakeDriver(const FakeDriverOptions& options = {});
  // Streams that wait in vain are dropped.
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  [[nodiscard]] const CudaDriver& table() const;

  // The driver's function of this name, as "cuMemcpyAsync", fails at its `call`-th call from now on (1: the next),
  // once.
  void fail(const std::string& function, CUresult result, int call = 1);
  // What goes before each launch of the kernel of this name: at its first launch in the stream's context it is loaded,
  // for which the driver may wait until all streams of the context are idle, as this one does.
  static void load(CUstream stream, const std::string& kernel);
  // Kernels of the stream's context so far.
  [[nodiscard]] static std::size_t num_loaded(CUstream stream);

  // The GPU has failed, as by a kernel that wrote where it must not: nothing enqueued runs any more, not even host
  // functions, and every call says so.
  void fault(CUresult result);
  // As at the end of the process: nothing enqueued runs any more. Before memory goes that streams may still wait for or
  // copy.
  void stop();
  // How often it was called.
  [[nodiscard]] int num_calls(const std::string& function) const;

  // What was enqueued, by stream in the order of their creation, each in the order of enqueueing: "copy 4096", "record
  // e3", "wait e3", "write 5", "wait >= 5", "call". Events are numbered in the order of their creation.
  [[nodiscard]] std::vector<std::vector<std::string>> log() const;
  void clear_log();

  // Nothing runs in the stream of this number (in the order of their creation) until it is let go.
  void hold(int stream);
  void let_go(int stream);

  // From now on every registration of host memory is refused, or none for this reason.
  void refuse_registrations(bool refuses);
  // How often memory was to be registered of which a part was registered already.
  [[nodiscard]] int num_registered_twice() const;

  // Bytes registered and taken now.
  [[nodiscard]] std::uint64_t registered_bytes() const;
  [[nodiscard]] std::uint64_t taken_bytes() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace rp::test
