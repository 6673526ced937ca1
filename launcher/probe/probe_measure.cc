#include "launcher/probe/probe_measure.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/median.h"
#include "common/system/clock.h"
#include "common/system/fd.h"
#include "common/text.h"
#include "cuda/pinned_memory.h"
#include "launcher/probe/probe_stream.h"

namespace rp {

namespace {

constexpr std::uint64_t kSmallCopy = 64;

// Shared host memory, mapped as a worker maps the host store, with all pages touched. One half is
// read-only, like weights; the other is writable, like gradients.
class HostMemory {
 public:
  explicit HostMemory(std::uint64_t half_bytes) : half_bytes_(half_bytes), fd_(memfd_create("rp-probe", MFD_CLOEXEC)) {
    if (!fd_ || ftruncate(fd_.get(), static_cast<off_t>(2 * half_bytes)) != 0) fail();
    weights_ = map(0);
    gradients_ = map(half_bytes);
    for (std::byte* const half : {weights_, gradients_}) {
      (void)madvise(half, half_bytes, MADV_HUGEPAGE);
      std::memset(half, 1, half_bytes);
    }
    if (mprotect(weights_, half_bytes, PROT_READ) != 0) fail();
  }
  ~HostMemory() {
    for (std::byte* const half : {weights_, gradients_}) {
      if (half != nullptr) munmap(half, half_bytes_);
    }
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  [[nodiscard]] std::byte* weights() const { return weights_; }
  [[nodiscard]] std::byte* gradients() const { return gradients_; }

  // Returns whether the kernel gave this memory huge pages.
  [[nodiscard]] bool has_huge_pages() const {
    std::ostringstream start;
    start << std::hex << reinterpret_cast<std::uintptr_t>(gradients_) << "-";
    std::ifstream file("/proc/self/smaps");
    bool is_it = false;
    for (std::string line; std::getline(file, line);) {
      is_it = is_it || line.starts_with(start.str());
      if (is_it && line.starts_with("ShmemPmdMapped:")) return line.find_first_of("123456789") != std::string::npos;
    }
    return false;
  }

 private:
  [[nodiscard]] std::byte* map(std::uint64_t offset) const {
    void* const data =
        mmap(nullptr, half_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), static_cast<off_t>(offset));
    if (data == MAP_FAILED) fail();
    return static_cast<std::byte*>(data);
  }
  [[noreturn]] void fail() const {
    throw Error(ExitCode::kNoResource, cat("cannot take ", bytes_text(2 * half_bytes_), " of memory to measure with (",
                                           errno_text(errno), "); end other programs"));
  }

  const std::uint64_t half_bytes_;
  const UniqueFd fd_;
  std::byte* weights_ = nullptr;
  std::byte* gradients_ = nullptr;
};

}  // namespace

// On each side, one half of the memory is used for copies to the GPU, the other for copies from the
// GPU.
class ProbeMeasure::Buffers {
 public:
  Buffers(const CudaContext& context, std::uint64_t bytes)
      : context_(context), bytes_(bytes), host_(bytes), pinned_(context) {}
  ~Buffers() {
    if (device_ != 0) (void)context_.driver().mem_free(device_);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  void take(ProbeFigures& figures) {
    figures.huge_pages = host_.has_huge_pages();
    figures.register_s_per_gib = register_half(host_.gradients(), false);
    figures.register_read_only_s_per_gib = register_half(host_.weights(), true);
    context_.check(context_.driver().mem_alloc(&device_, 2 * bytes_), "taking memory of the GPU to measure with");
  }

  void enqueue_copy(Direction direction, std::uint64_t bytes, const ProbeStream& stream) const {
    const std::uint64_t offset = direction == Direction::kUp ? 0 : bytes_;
    const bool is_up = direction == Direction::kUp;
    const auto host = reinterpret_cast<CUdeviceptr>(is_up ? host_.weights() : host_.gradients());
    const CUdeviceptr device = device_ + offset;
    context_.check(context_.driver().memcpy_async(is_up ? device : host, is_up ? host : device, bytes, stream.get()),
                   "copying");
  }

 private:
  // Returns the time of registration in seconds per GiB.
  double register_half(std::byte* data, bool is_read_only) {
    context_.make_current();
    const std::int64_t begin = now_ns();
    const std::string failure = pinned_.add(data, bytes_, is_read_only);
    if (!failure.empty()) {
      throw Error(ExitCode::kNoResource, cat("cannot register ", bytes_text(bytes_), " of ",
                                             is_read_only ? "read-only " : "", "shared memory for the GPU: ", failure,
                                             "; see ulimit -l and the memory limit of the container or job"));
    }
    const double seconds = static_cast<double>(now_ns() - begin) / static_cast<double>(kNsPerSecond);
    return seconds * kGiB / static_cast<double>(bytes_);
  }

  const CudaContext& context_;
  std::uint64_t bytes_;
  HostMemory host_;
  PinnedMemory pinned_;  // unregisters the memory before host_ frees it
  CUdeviceptr device_ = 0;
};

ProbeMeasure::ProbeMeasure(const CudaContext& context, const ProbeSettings& settings)
    : context_(context), settings_(settings) {
  context_.make_current();
  std::size_t free = 0;
  std::size_t total = 0;
  context_.check(context_.driver().mem_get_info(&free, &total), "asking for free memory");
  fixed_.memory_gib = static_cast<double>(total) / kGiB;
  fixed_.usable_gib = static_cast<double>(free) / kGiB;
  fixed_.copy_engines = context_.attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  fixed_.has_word_operations = context_.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  fixed_.registers_read_only = context_.attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
  fixed_.has_unified_addressing = context_.attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) != 0;
  buffers_ = std::make_unique<Buffers>(context, settings.bytes);
  buffers_->take(fixed_);
}

ProbeMeasure::~ProbeMeasure() = default;

double ProbeMeasure::bandwidth(Direction direction, std::int64_t end_ns) const {
  const CudaDriver& driver = context_.driver();
  const ProbeStream stream(context_);
  const std::array<CudaEventHandle, 2> done{CudaEventHandle(context_), CudaEventHandle(context_)};
  buffers_->enqueue_copy(direction, settings_.bytes, stream);  // lets the link of an idle card return to full speed
  context_.check(driver.event_record(done[1].get(), stream.get()), "recording an event");
  context_.check(driver.event_synchronize(done[1].get()), "waiting for a copy");
  const std::int64_t begin = now_ns();
  std::size_t num_copies = 0;
  do {
    // The next copy is enqueued while one runs.
    buffers_->enqueue_copy(direction, settings_.bytes, stream);
    context_.check(driver.event_record(done[num_copies % 2].get(), stream.get()), "recording an event");
    if (num_copies > 0)
      context_.check(driver.event_synchronize(done[(num_copies - 1) % 2].get()), "waiting for a copy");
    ++num_copies;
  } while (now_ns() < end_ns);
  context_.check(driver.event_synchronize(done[(num_copies - 1) % 2].get()), "waiting for a copy");
  return static_cast<double>(num_copies * settings_.bytes) /
         static_cast<double>(now_ns() - begin);  // bytes per ns are GB/s
}

double ProbeMeasure::both_bandwidth(std::int64_t end_ns) const {
  double up = 0;
  std::exception_ptr failure;
  std::thread other([&] {
    try {
      up = bandwidth(Direction::kUp, end_ns);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  double down = 0;
  try {
    down = bandwidth(Direction::kDown, end_ns);
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (failure) std::rethrow_exception(failure);
  return (up + down) / 2;
}

double ProbeMeasure::small_copy_us() const {
  const CudaDriver& driver = context_.driver();
  const ProbeStream stream(context_);
  const CudaEventHandle done(context_);
  std::vector<std::int64_t> times_ns;
  for (int i = 0; i < settings_.num_small_copies; ++i) {
    const std::int64_t begin = now_ns();
    buffers_->enqueue_copy(Direction::kUp, kSmallCopy, stream);
    context_.check(driver.event_record(done.get(), stream.get()), "recording an event");
    // Polls, because the time until a sleeping thread wakes up is not part of the copy.
    CUresult result = CUDA_ERROR_NOT_READY;
    while ((result = driver.event_query(done.get())) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    context_.check(result, "waiting for a copy");
    times_ns.push_back(now_ns() - begin);
  }
  return static_cast<double>(median(std::move(times_ns))) / 1000.0;
}

ProbeFigures ProbeMeasure::measure() {
  context_.make_current();
  ProbeFigures figures = fixed_;
  const std::int64_t begin = now_ns();
  const auto end_of_phase = [&](int phase) {
    return begin + static_cast<std::int64_t>(phase * settings_.seconds * static_cast<double>(kNsPerSecond));
  };
  figures.host_to_device_gbs = bandwidth(Direction::kUp, end_of_phase(1));
  figures.device_to_host_gbs = bandwidth(Direction::kDown, end_of_phase(2));
  figures.both_directions_gbs = both_bandwidth(end_of_phase(3));
  figures.copy_latency_us = small_copy_us();
  return figures;
}

}  // namespace rp
