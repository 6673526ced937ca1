#include "tests/cuda/timed_driver.h"

#include <utility>

#include "common/check.h"

namespace rp::test {

namespace {

TimedDriver* g_driver = nullptr;

}  // namespace

struct TimedDriver::Calls {
  static CUresult memcpy_async(CUdeviceptr, CUdeviceptr, std::size_t bytes, CUstream stream) {
    return g_driver->enqueue(stream, {.kind = Operation::Kind::kCopy, .bytes = bytes});
  }
  static CUresult event_record(CUevent event, CUstream stream) {
    const std::uint64_t recording = ++g_driver->recordings_[event].recorded;
    return g_driver->enqueue(stream, {.kind = Operation::Kind::kRecord, .event = event, .recording = recording});
  }
  static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
    const std::uint64_t recording = g_driver->recordings_[event].recorded;
    return g_driver->enqueue(stream, {.kind = Operation::Kind::kWait, .event = event, .recording = recording});
  }
  static CUresult launch_host_func(CUstream stream, CUhostFn function, void* argument) {
    return g_driver->enqueue(stream, {.kind = Operation::Kind::kCall, .function = function, .argument = argument});
  }
  static CUresult stream_query(CUstream stream) {
    return g_driver->streams_[stream].operations.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
};

TimedDriver::TimedDriver(const FakeDriver& driver, const TimedDriverOptions& options)
    : options_(options), table_(driver.table()), random_(options.seed) {
  RP_ASSERT(g_driver == nullptr);
  g_driver = this;
  table_.memcpy_async = &Calls::memcpy_async;
  table_.event_record = &Calls::event_record;
  table_.stream_wait_event = &Calls::stream_wait_event;
  table_.launch_host_func = &Calls::launch_host_func;
  table_.stream_query = &Calls::stream_query;
}

TimedDriver::~TimedDriver() { g_driver = nullptr; }

std::int64_t TimedDriver::now_ns() { return g_driver->now_ns_; }

void TimedDriver::at(std::int64_t time_ns, std::function<void()> function) {
  events_.push({.time_ns = time_ns, .number = ++num_events_, .function = std::move(function)});
}

void TimedDriver::step() {
  RP_ASSERT(!events_.empty());
  const Happening next = events_.top();
  events_.pop();
  now_ns_ = next.time_ns;
  is_other_thread_ = true;
  next.function();
  is_other_thread_ = false;
}

void TimedDriver::pass(std::int64_t ns) {
  const std::int64_t end_ns = now_ns_ + ns;
  while (!events_.empty() && events_.top().time_ns <= end_ns) step();
  now_ns_ = end_ns;
}

CUresult TimedDriver::enqueue(CUstream stream, const Operation& operation) {
  if (!is_other_thread_) pass(options_.call_ns);
  streams_[stream].operations.push_back(operation);
  run_stream(stream);
  return CUDA_SUCCESS;
}

void TimedDriver::run_stream(CUstream stream) {
  StreamState& state = streams_[stream];
  while (!state.is_busy && !state.operations.empty()) {
    const Operation operation = state.operations.front();
    switch (operation.kind) {
      case Operation::Kind::kCopy:
        state.is_busy = true;
        waiting_.push_back({.stream = stream, .bytes = operation.bytes, .ready_ns = now_ns_});
        start_copy();
        break;
      case Operation::Kind::kCall:
        state.is_busy = true;
        at(now_ns_ + host_function_ns(), [this, stream, operation] {
          operation.function(operation.argument);
          end_operation(stream);
        });
        break;
      case Operation::Kind::kWait:
        if (recordings_[operation.event].completed < operation.recording) return;
        state.operations.pop_front();
        break;
      case Operation::Kind::kRecord:
        state.operations.pop_front();
        recordings_[operation.event].completed = operation.recording;
        for (const auto& [other, _] : streams_) {
          if (other != stream) run_stream(other);
        }
        break;
    }
  }
}

void TimedDriver::end_operation(CUstream stream) {
  StreamState& state = streams_[stream];
  state.operations.pop_front();
  state.is_busy = false;
  run_stream(stream);
}

void TimedDriver::start_copy() {
  if (is_copying_ || waiting_.empty()) return;
  is_copying_ = true;
  Copy copy = waiting_.front();
  waiting_.pop_front();
  copy.start_ns = now_ns_;
  copy.end_ns = now_ns_ + static_cast<std::int64_t>(static_cast<double>(copy.bytes) / options_.bytes_per_ns);
  copies_.push_back(copy);
  at(copy.end_ns, [this, stream = copy.stream] {
    is_copying_ = false;
    start_copy();
    end_operation(stream);
  });
}

std::int64_t TimedDriver::host_function_ns() {
  const double part = 1 + options_.jitter * std::uniform_real_distribution<double>(-1, 1)(random_);
  return static_cast<std::int64_t>(static_cast<double>(options_.host_function_ns) * part);
}

}  // namespace rp::test
