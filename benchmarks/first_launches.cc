#include "benchmarks/first_launches.h"

#include <atomic>
#include <new>
#include <optional>
#include <thread>

#include "common/system/clock.h"
#include "cuda/cuda_stream.h"
#include "hoststore/sequence_word.h"

namespace rp {

namespace {

constexpr std::int64_t kLaunchTimeoutNs = 60 * kNsPerSecond;

// A stream that waits for a word of pinned memory. The caller writes the word, or a watchdog thread
// if that takes too long. The watchdog makes no call of the driver, since such a call may be what
// blocks the caller.
class ShutStream {
 public:
  ShutStream(const CudaContext& context, double watch_s)
      : context_(context), watch_ns_(static_cast<std::int64_t>(watch_s * 1e9)), queue_(context, true) {
    if (context.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
      throw Error(ExitCode::kNoResource, "streams of this GPU cannot wait for words");
    }
    void* page = nullptr;
    constexpr unsigned kFlags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    context.check(context.driver().mem_host_alloc(&page, 4096, kFlags), "taking pinned memory");
    word_ = new (page) SequenceWord();
    context.check(context.driver().mem_host_get_device_pointer(&address_, page, 0), "asking for a word's address");
  }
  ~ShutStream() {
    (void)end_watch();
    (void)context_.driver().mem_free_host(word_);
  }
  ShutStream(const ShutStream&) = delete;
  ShutStream& operator=(const ShutStream&) = delete;

  void shut() {
    ++value_;
    context_.check(context_.driver().stream_wait_value64(queue_.get(), address_, value_, CU_STREAM_WAIT_VALUE_GEQ),
                   "enqueueing a wait");
    watchdog_ = std::thread([this] {
      static const std::atomic<bool> never{false};
      was_late_ = ended_.wait_at_least(value_, {&never, watch_ns_}) == WaitResult::kTimedOut;
      word_->publish_quietly(value_);
    });
  }
  // Writes the word. Returns whether the watchdog had to write it earlier.
  [[nodiscard]] bool let_go() {
    const bool was_late = end_watch();
    if (!queue_.drain(kLaunchTimeoutNs))
      throw Error(ExitCode::kHang, "a stream did not end its wait for a word within 60 s");
    return was_late;
  }

 private:
  bool end_watch() {
    if (!watchdog_.joinable()) return false;
    ended_.publish(value_);
    watchdog_.join();
    return was_late_;
  }

  const CudaContext& context_;
  const std::int64_t watch_ns_;
  const CudaQueue queue_;
  SequenceWord* word_ = nullptr;  // writer: the watchdog. The word that the stream waits for
  CUdeviceptr address_ = 0;
  SequenceWord ended_{};     // writer: the caller. Set when the launch has ended
  std::uint64_t value_ = 0;  // of both words; belongs to the caller while there is no watchdog
  bool was_late_ = false;    // belongs to the watchdog while there is one
  std::thread watchdog_;
};

double timed_ms(const CudaContext& context, const CudaQueue& queue, const FirstLaunch& launch) {
  const std::int64_t begin = now_ns();
  launch.enqueue(queue.get());
  const Deadline deadline = Deadline::after_ns(kLaunchTimeoutNs);
  CUresult result = CUDA_SUCCESS;
  while ((result = context.driver().stream_query(queue.get())) == CUDA_ERROR_NOT_READY) {
    if (deadline.passed()) throw Error(ExitCode::kHang, launch.what + " did not end within 60 s");
    std::this_thread::yield();
  }
  context.check(result, "waiting for a launch");
  return static_cast<double>(now_ns() - begin) / 1e6;
}

}  // namespace

std::vector<FirstLaunchTime> time_first_launches(const CudaContext& context, const std::vector<FirstLaunch>& launches,
                                                 double watch_s) {
  context.make_current();
  const CudaQueue queue(context, false);
  std::optional<ShutStream> beside;
  if (watch_s > 0) beside.emplace(context, watch_s);
  std::vector<FirstLaunchTime> times;
  const auto time = [&](const FirstLaunch& launch, double& ms, bool& was_held_up) {
    if (beside) beside->shut();
    ms = timed_ms(context, queue, launch);
    was_held_up = beside && beside->let_go();
  };
  for (const FirstLaunch& launch : launches) {
    FirstLaunchTime& its = times.emplace_back(FirstLaunchTime{.what = launch.what});
    time(launch, its.first_ms, its.was_held_up);
    time(launch, its.again_ms, its.was_held_up_again);
  }
  return times;
}

}  // namespace rp
