#include "benchmarks/first_launches.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "cuda/cuda_stream.h"
#include "hoststore/sequence_word.h"

namespace rp {

namespace {

constexpr std::int64_t kTimeoutNs = 60 * kNsPerSecond;

// A stream that waits for a word of pinned memory, and who writes it: the caller, or a thread that has waited long enough for that. The
// thread makes no call of the driver, which may be what holds the caller up.
class ShutStream {
 public:
  ShutStream(const CudaContext& context, double watch_s) : context_(context), watch_s_(watch_s), queue_(context, true) {
    void* page = nullptr;
    context.check(context.driver().mem_host_alloc(&page, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "taking pinned memory");
    word_ = new (page) SequenceWord();
    context.check(context.driver().mem_host_get_device_pointer(&address_, page, 0), "asking for a word's address");
    if (context.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
      throw Error(ExitCode::kNoResource, "streams of this GPU cannot wait for words");
    }
    watchdog_ = std::thread([this] { watch(); });
  }
  ~ShutStream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    watchdog_.join();
    word_->publish_quietly(UINT64_MAX);
    (void)context_.driver().mem_free_host(word_);
  }
  ShutStream(const ShutStream&) = delete;
  ShutStream& operator=(const ShutStream&) = delete;

  void shut() {
    context_.check(context_.driver().stream_wait_value64(queue_.get(), address_, value_ + 1, CU_STREAM_WAIT_VALUE_GEQ), "enqueueing a wait");
    const std::lock_guard lock(mutex_);
    ++value_;
    until_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(watch_s_));
    changed_.notify_one();
  }
  // Whether the watchdog had to do it before.
  bool let_go() {
    bool was_late = false;
    {
      const std::lock_guard lock(mutex_);
      was_late = !until_;
      until_.reset();
      word_->publish_quietly(value_);
    }
    if (!queue_.drain(kTimeoutNs)) throw Error(ExitCode::kHang, "a stream did not end its wait for a word within 60 s");
    return was_late;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      if (!until_) {
        changed_.wait(lock);
      } else if (std::chrono::steady_clock::now() < *until_) {
        changed_.wait_until(lock, std::chrono::steady_clock::time_point(*until_));
      } else {
        until_.reset();
        word_->publish_quietly(value_);
      }
    }
  }

  const CudaContext& context_;
  const double watch_s_;
  const CudaQueue queue_;
  SequenceWord* word_ = nullptr;  // writer: who has the lock
  CUdeviceptr address_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t value_ = 0;  // that the stream waits for
  std::optional<std::chrono::steady_clock::time_point> until_;  // of a stream that is shut
  bool ends_ = false;
  std::thread watchdog_;
};

double timed_ms(const CudaContext& context, const CudaQueue& queue, const FirstLaunch& launch) {
  const std::int64_t begin = now_ns();
  launch.enqueue(queue.get());
  const Deadline deadline = Deadline::after_ns(kTimeoutNs);
  CUresult result = CUDA_SUCCESS;
  while ((result = context.driver().stream_query(queue.get())) == CUDA_ERROR_NOT_READY) {
    if (deadline.passed()) throw Error(ExitCode::kHang, launch.what + " did not end within 60 s");
    std::this_thread::yield();
  }
  context.check(result, "waiting for a launch");
  return static_cast<double>(now_ns() - begin) / 1e6;
}

}  // namespace

std::vector<FirstLaunchTime> time_first_launches(const CudaContext& context, const std::vector<FirstLaunch>& launches, double watch_s) {
  context.make_current();
  const CudaQueue queue(context, false);
  std::optional<ShutStream> beside;
  if (watch_s > 0) beside.emplace(context, watch_s);
  std::vector<FirstLaunchTime> times;
  for (const FirstLaunch& launch : launches) {
    if (beside) beside->shut();
    const double first_ms = timed_ms(context, queue, launch);
    const bool was_held_up = beside && beside->let_go();
    times.push_back({.what = launch.what, .first_ms = first_ms, .again_ms = timed_ms(context, queue, launch), .was_held_up = was_held_up});
  }
  return times;
}

}  // namespace rp
