// tests/cuda/timed_driver.h
// A CUDA driver without a GPU whose streams run in virtual time. It shows the effect of a link and
// of the host's own latencies on a sequence of calls, exact to the nanosecond and reproducible.
//
// The link has one direction. It executes one copy at a time, from all streams in the order in
// which copies could begin. A host function runs some time after the operations before it in its
// stream, and calls of the driver take time of the calling thread. There is one such thread, the
// test's: it sleeps in step(), is busy in pass(), and calls of other threads are made by at().
//
// Contexts, memory and the creation of streams are those of the FakeDriver, which must outlive it.
// No bytes are copied. Only one may exist in a process at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <vector>

#include "tests/cuda/fake_driver/fake_driver.h"

namespace rp::test {

struct TimedDriverOptions {
  double bytes_per_ns = 25;           // of the link, in GB/s
  std::int64_t call_ns = 2000;        // for each call of the driver that enqueues
  std::int64_t host_function_ns = 0;  // from the time when it can run until it has run
  double jitter = 0;                  // of host_function_ns: the relative deviation up or down
  unsigned seed = 1;
};

class TimedDriver {
 public:
  TimedDriver(const FakeDriver& driver, const TimedDriverOptions& options);
  ~TimedDriver();
  TimedDriver(const TimedDriver&) = delete;
  TimedDriver& operator=(const TimedDriver&) = delete;

  [[nodiscard]] const CudaDriver& table() const { return table_; }
  // Returns the virtual time of the only TimedDriver.
  [[nodiscard]] static std::int64_t now_ns();

  // Advances to the next happening and its time. REQUIRES: an operation is in progress.
  void step();
  // Advances by this time, during which other operations proceed.
  void pass(std::int64_t ns);
  [[nodiscard]] bool is_idle() const { return events_.empty(); }

  // Runs `function` at this time, in another host thread, whose calls take no time of the test's
  // thread.
  void at(std::int64_t time_ns, std::function<void()> function);

  // A copy that has begun.
  struct Copy {
    CUstream stream = nullptr;
    std::uint64_t bytes = 0;
    std::int64_t ready_ns = 0;  // when it could begin if the link were free
    std::int64_t start_ns = 0;
    std::int64_t end_ns = 0;
  };
  [[nodiscard]] const std::vector<Copy>& copies() const { return copies_; }

 private:
  struct Calls;
  struct Operation {
    enum class Kind { kCopy, kRecord, kWait, kCall };
    Kind kind = Kind::kCopy;
    std::uint64_t bytes = 0;
    CUevent event = nullptr;
    std::uint64_t recording = 0;  // of the event
    CUhostFn function = nullptr;
    void* argument = nullptr;
  };
  struct StreamState {
    std::deque<Operation> operations;
    bool is_busy = false;  // it is executing its first operation
  };
  struct EventState {
    std::uint64_t recorded = 0;
    std::uint64_t completed = 0;
  };
  struct Happening {
    std::int64_t time_ns = 0;
    std::uint64_t number = 0;
    std::function<void()> function;
    bool operator<(const Happening& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
    }
  };

  CUresult enqueue(CUstream stream, const Operation& operation);
  void run_stream(CUstream stream);
  void end_operation(CUstream stream);
  void start_copy();
  [[nodiscard]] std::int64_t host_function_ns();

  const TimedDriverOptions options_;
  CudaDriver table_;
  std::mt19937 random_;
  std::int64_t now_ns_ = 0;
  bool is_other_thread_ = false;
  std::uint64_t num_events_ = 0;
  std::priority_queue<Happening> events_;
  std::map<CUstream, StreamState> streams_;
  std::map<CUevent, EventState> recordings_;
  std::deque<Copy> waiting_;  // for the link
  bool is_copying_ = false;
  std::vector<Copy> copies_;
};

}  // namespace rp::test
