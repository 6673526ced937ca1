#include "benchmarks/host_function_speed.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/system/clock.h"
#include "cuda/cuda_stream.h"

namespace rp {

namespace {

constexpr std::int64_t kFunctionTimeoutNs = 60 * kNsPerSecond;

// SYNC: release by the driver's thread; pairs with the acquire of the thread that measures.
void stamp(void* place) { static_cast<std::atomic<std::int64_t>*>(place)->store(now_ns(), std::memory_order_release); }
void do_nothing(void*) {}

void enqueue(const CudaContext& context, const CudaQueue& queue, CUhostFn function, void* argument) {
  context.check(context.driver().launch_host_func(queue.get(), function, argument), "enqueueing a host function");
}

void drain(const CudaQueue& queue) {
  if (!queue.drain(kFunctionTimeoutNs))
    throw Error(ExitCode::kHang, "the driver did not call a host function within 60 s");
}

double latency_us(const CudaContext& context, const CudaQueue& queue) {
  // Static: a function that is called after the deadline still writes to it.
  static std::atomic<std::int64_t> called_ns{0};
  called_ns.store(0);
  const std::int64_t begin = now_ns();
  enqueue(context, queue, stamp, &called_ns);
  const Deadline deadline = Deadline::after_ns(kFunctionTimeoutNs);
  while (called_ns.load(std::memory_order_acquire) == 0) {
    if (deadline.passed()) throw Error(ExitCode::kHang, "the driver did not call a host function within 60 s");
    std::this_thread::yield();
  }
  drain(queue);
  return static_cast<double>(called_ns.load() - begin) / 1000.0;
}

double calls_per_s(const CudaContext& context, const std::vector<CudaQueue>& queues, int calls_of_each) {
  const std::int64_t begin = now_ns();
  for (int i = 0; i < calls_of_each; ++i) {
    for (const CudaQueue& queue : queues) enqueue(context, queue, do_nothing, nullptr);
  }
  for (const CudaQueue& queue : queues) drain(queue);
  const double seconds = static_cast<double>(now_ns() - begin) / static_cast<double>(kNsPerSecond);
  return static_cast<double>(calls_of_each) * static_cast<double>(queues.size()) / seconds;
}

}  // namespace

HostFunctionSpeed measure_host_functions(const CudaContext& context, const HostFunctionSettings& settings) {
  context.make_current();
  std::vector<CudaQueue> one, several;
  one.emplace_back(context, false);
  for (int i = 0; i < settings.num_streams; ++i) several.emplace_back(context, false);
  HostFunctionSpeed speed;
  for (int i = 0; i < settings.num_latencies + 1; ++i) {
    const double us = latency_us(context, one.front());
    if (i > 0) speed.latencies_us.push_back(us);  // the first call creates the driver's thread
  }
  std::sort(speed.latencies_us.begin(), speed.latencies_us.end());
  speed.calls_per_s_on_one = calls_per_s(context, one, settings.calls_of_each);
  speed.calls_per_s_on_several = calls_per_s(context, several, settings.calls_of_each);
  return speed;
}

}  // namespace rp
