// tests/cuda/timed_driver.h
// A CUDA driver without a GPU whose streams take virtual time: what a link and the host's own latencies make of an
// order of calls, to the nanosecond and the same each time.
//
// The link has one direction. It does one copy at a time, of all streams in the order in which they could begin. A host
// function runs some time after what stands before it in its stream, and the driver's calls take time of the thread
// that calls. There is one such thread, the test's: it sleeps by step(), is busy by pass(), and others' calls are made
// by at().
//
// Contexts, memory and the making of streams are the FakeDriver's, which must outlive it. No bytes move. One at a time
// in a process.
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
  double bytes_per_ns = 25;           // of the link, GB/s
  std::int64_t call_ns = 2000;        // each call of the driver's that enqueues
  std::int64_t host_function_ns = 0;  // from when it can run until it has
  double jitter = 0;                  // of that: as a part of it, shorter or longer
  unsigned seed = 1;
};

class TimedDriver {
 public:
  TimedDriver(const FakeDriver& driver, const TimedDriverOptions& options);
  ~TimedDriver();
  TimedDriver(const TimedDriver&) = delete;
  TimedDriver& operator=(const TimedDriver&) = delete;

  [[nodiscard]] const CudaDriver& table() const { return table_; }
  // The virtual time of the one that there is.
  [[nodiscard]] static std::int64_t now_ns();

  // Goes on to the next thing that happens, and to its time. REQUIRES: something is under way.
  void step();
  // Goes on by this time, in which other things happen.
  void pass(std::int64_t ns);
  [[nodiscard]] bool is_idle() const { return events_.empty(); }

  // `function` runs at this time, in another thread of the host's, whose calls take no time of the test's.
  void at(std::int64_t time_ns, std::function<void()> function);

  // A copy that has begun.
  struct Copy {
    CUstream stream = nullptr;
    std::uint64_t bytes = 0;
    std::int64_t ready_ns = 0;  // it could begin, if the link were free
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
    bool is_busy = false;  // with the first one
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
