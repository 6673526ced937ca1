// Tests a GPU's memory, copies and registered memory, over a driver without a GPU.
// tests/device/device_test.cc tests streams in general.
#include "cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/common/expect_refusal.h"
#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/small_store.h"

namespace rp {
namespace {

using test::FakeDriver;
using test::store_with_layers;

constexpr std::uint64_t kPage = 4096;

std::unique_ptr<CudaDevice> device_of(const FakeDriver& driver,
                                      const CudaDeviceOptions& options = {.memory_bytes = 32 << 20}) {
  return std::make_unique<CudaDevice>(driver.table(), options, [](const std::string&) {});
}

// Pages of host memory, filled with numbers.
class HostPages {
 public:
  explicit HostPages(std::uint64_t num) : bytes_(num * kPage) {
    data_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    auto* const words = reinterpret_cast<std::uint32_t*>(data_);
    std::iota(words, words + bytes_ / sizeof(*words), 1U);
  }
  ~HostPages() { munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_;
  std::byte* data_;
};

// A stream over registered memory that the test chooses.
struct OwnStream {
  explicit OwnStream(const FakeDriver& of_driver)
      : driver(of_driver),
        context(CudaContext::open(of_driver.table(), "")),
        arena(context, 32 << 20),
        pinned(context),
        stream(context,
               {.arena = arena, .pinned = pinned, .on_unregistered = [this](const std::byte*) { ++num_noticed; }},
               false) {}
  [[nodiscard]] std::vector<std::string> log() const { return driver.log().at(0); }

  const FakeDriver& driver;
  CudaContext context;
  DeviceArena arena;
  PinnedMemory pinned;
  int num_noticed = 0;
  CudaStream stream;
};

TEST(CudaStream, NeverCopiesAcrossTheEndOfWhatWasRegisteredInOnePiece) {
  const FakeDriver driver;
  OwnStream own(driver);
  const HostPages pages(6);
  EXPECT_EQ(own.pinned.add(pages.data(), 2 * kPage, false), "");
  EXPECT_EQ(own.pinned.add(pages.data() + 2 * kPage, 4 * kPage, false), "");
  std::byte* const memory = own.arena.allocate(pages.bytes(), MemoryUse::kTensors);
  own.stream.copy(memory, pages.data() + 100, pages.bytes() - 100);
  own.stream.drain();
  EXPECT_THAT(own.log(), testing::ElementsAre("copy 8092", "copy 16384"));
  EXPECT_EQ(std::memcmp(memory, pages.data() + 100, pages.bytes() - 100), 0);
  EXPECT_EQ(own.num_noticed, 0);
}

TEST(CudaStream, CopiesWhatIsNotRegisteredThroughABufferInItsOrder) {
  const FakeDriver driver({.max_delay_us = 50});
  OwnStream own(driver);
  constexpr std::uint64_t kPages = 2560;  // 10 MiB: the staging buffer is filled three times
  const HostPages pages(kPages);
  HostPages back(kPages);
  std::memset(back.data(), 0, back.bytes());
  // A piece in the middle is registered.
  EXPECT_EQ(own.pinned.add(pages.data() + 100 * kPage, kPage, false), "");
  std::byte* const memory = own.arena.allocate(pages.bytes(), MemoryUse::kTensors);
  own.stream.copy(memory, pages.data(), pages.bytes());
  own.stream.copy(back.data(), memory, pages.bytes());
  own.stream.drain();
  EXPECT_EQ(std::memcmp(back.data(), pages.data(), pages.bytes()), 0);
  EXPECT_EQ(own.stream.staged_bytes(), 2 * pages.bytes() - kPage);
  EXPECT_EQ(own.num_noticed, 3) << "on both sides of the piece, and the way back";
}

TEST(PinnedMemory, IsFoundByAnyOfItsBytes) {
  const FakeDriver driver;
  OwnStream own(driver);
  const HostPages pages(4);
  EXPECT_EQ(own.pinned.add(pages.data() + kPage, kPage, false), "");
  const auto extent = [&](std::uint64_t from, std::uint64_t bytes) {
    return own.pinned.extent(pages.data() + from, bytes);
  };
  EXPECT_FALSE(extent(0, 2 * kPage).is_registered);
  EXPECT_EQ(extent(0, 2 * kPage).bytes, kPage) << "up to where it begins";
  EXPECT_TRUE(extent(kPage + 5, 2 * kPage).is_registered);
  EXPECT_EQ(extent(kPage + 5, 2 * kPage).bytes, kPage - 5) << "up to where it ends";
  EXPECT_EQ(extent(2 * kPage, kPage).bytes, kPage);
  EXPECT_FALSE(extent(2 * kPage, kPage).is_registered);
}

// A failure has no effect that could appear later as another failure.
TEST(PinnedMemory, SaysWhyItCouldNotBeRegisteredAndIsAsBefore) {
  FakeDriver driver;
  OwnStream own(driver);
  const HostPages pages(2);
  for (const char* function : {"cuMemHostRegister", "cuMemHostGetDevicePointer"}) {
    driver.fail(function, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_THAT(own.pinned.add(pages.data(), kPage, false), testing::HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
    EXPECT_EQ(driver.registered_bytes(), 0U);
  }
  EXPECT_EQ(own.pinned.add(pages.data(), kPage, false), "");
}

TEST(PinnedMemory, TakesPagesThatThisProcessMayOnlyRead) {
  struct Case {
    bool knows_read_only;
    bool refuses_first;  // although it reports support
  };
  for (const auto [knows_read_only, refuses_first] : {Case{true, false}, Case{false, false}, Case{true, true}}) {
    FakeDriver driver({.registers_read_only = knows_read_only});
    OwnStream own(driver);
    const HostPages pages(2);
    if (refuses_first) driver.fail("cuMemHostRegister", CUDA_ERROR_NOT_SUPPORTED);
    mprotect(pages.data(), pages.bytes(), PROT_READ);
    EXPECT_EQ(own.pinned.add(pages.data(), pages.bytes(), true), "");
    EXPECT_EQ(getrandom(pages.data(), 8, 0), -1) << "it still may only read them";
    std::byte* const memory = own.arena.allocate(kPage, MemoryUse::kTensors);
    own.stream.copy(memory, pages.data(), kPage);
    own.stream.drain();
    EXPECT_EQ(std::memcmp(memory, pages.data(), kPage), 0);
  }
}

// The device

TEST(CudaDevice, TakesItsMemoryAtOnceAndSaysWhenItIsSpent) {
  const FakeDriver driver({.memory_bytes = 64 << 20});
  const auto device = device_of(driver, {.memory_bytes = 16 << 20});
  DeviceMemory half = device->allocate(8 << 20, MemoryUse::kInputs);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(half.data()) % 4096, 0U);
  expect_error(ExitCode::kNoResource,
               {"9.00 MiB are wanted for gradients", "of 16.0 MiB (--gpu-memory)", "taken 8.00 MiB: inputs 8.00 MiB",
                "a larger --gpu-memory"},
               [&] { (void)device->allocate(9 << 20, MemoryUse::kGradients); });
  half = {};
  EXPECT_EQ(device->allocate(16 << 20, MemoryUse::kInputs).bytes(), 16U << 20);
  EXPECT_EQ(driver.num_calls("cuMemAlloc"), 1);
}

TEST(CudaDevice, KnowsWhatItsMemoryIsFor) {
  const FakeDriver driver;
  const auto device = device_of(driver, {.memory_bytes = 16 << 20});
  DeviceMemory weights = device->allocate(3 << 20, MemoryUse::kWeights);
  weights = {};
  weights = device->allocate(2 << 20, MemoryUse::kWeights);
  std::byte* const tensor = device->take(4 << 20, MemoryUse::kTensors);
  std::byte* const other = device->take(1 << 20, MemoryUse::kTensors);
  DeviceArena& arena = device->arena();
  EXPECT_GT(tensor, weights.data() + (8 << 20)) << "at the other end";
  EXPECT_EQ(arena.take_tensor_level().peak_bytes, 5U << 20);
  arena.count_as(tensor, MemoryUse::kOutputs);
  EXPECT_EQ(arena.take_tensor_level().bytes, 1U << 20);
  EXPECT_EQ(arena.take_tensor_level().peak_bytes, 1U << 20) << "since the last call";
  const auto of = [](const BytesByUse& bytes, MemoryUse use) { return bytes[use]; };
  EXPECT_EQ(of(arena.state().bytes_by_use, MemoryUse::kOutputs), 4U << 20);
  EXPECT_EQ(of(arena.state().bytes_by_use, MemoryUse::kWeights), 2U << 20);
  EXPECT_EQ(arena.state().largest_free_bytes, 9U << 20);
  arena.free(tensor);
  arena.free(other);
  EXPECT_EQ(arena.state().used_bytes(), 2U << 20);
  const DeviceMemoryPeaks peaks = device->memory_peaks();
  EXPECT_EQ(peaks.limit_bytes, 16U << 20);
  EXPECT_EQ(peaks.peak_bytes, 7U << 20);
  EXPECT_EQ(of(peaks.peak_by_use, MemoryUse::kWeights), 3U << 20);
  EXPECT_EQ(of(peaks.peak_by_use, MemoryUse::kTensors), 5U << 20);
  EXPECT_EQ(of(peaks.peak_by_use, MemoryUse::kOutputs), 4U << 20);
  EXPECT_EQ(of(peaks.peak_by_use, MemoryUse::kInputs), 0U);
}

TEST(CudaDevice, SaysThatItsMemoryIsInPieces) {
  const FakeDriver driver;
  const auto device = device_of(driver, {.memory_bytes = 4 << 20});
  std::vector<std::byte*> pieces(4);
  for (std::byte*& piece : pieces) piece = device->take(1 << 20, MemoryUse::kTensors);
  for (const std::size_t i : {0U, 2U}) device->arena().free(pieces[i]);
  expect_error(ExitCode::kNoResource,
               {"2.00 MiB are wanted for weights", "2.00 MiB are free, but no part of them is longer than 1.00 MiB"},
               [&] { (void)device->allocate(2 << 20, MemoryUse::kWeights); });
  for (const std::size_t i : {1U, 3U}) device->arena().free(pieces[i]);
}

TEST(CudaDevice, TakesWhatIsFreeButForAMarginAndSharesItWithOthersOnTheSameGpu) {
  const std::uint64_t memory = 2 * CudaDevice::kMarginBytes + (64 << 20);
  const FakeDriver driver({.memory_bytes = memory});
  const auto first = device_of(driver, {.num_sharers = 2});
  EXPECT_EQ(driver.taken_bytes(), 32U << 20);
  EXPECT_EQ(first->name(), "cuda (Fake)");
  const auto second = device_of(driver, {.num_sharers = 2});
  EXPECT_EQ(driver.taken_bytes(), 64U << 20) << "no less for who comes later";
  const auto third =
      device_of(driver, {.memory_bytes = CudaDevice::kMarginBytes});  // takes the place of another program
  expect_error(ExitCode::kNoResource, {"1.00 GiB of memory free", "1.50 GiB are wanted", "--gpu-memory", "nvidia-smi"},
               [&] { (void)device_of(driver, {.memory_bytes = std::uint64_t{3} << 29}); });
  expect_error(ExitCode::kNoResource, {"only 1.00 GiB of memory free", "--gpu-memory", "nvidia-smi"},
               [&] { (void)device_of(driver, {}); });
}

TEST(CudaDevice, LeavesRoomForThePageTablesOfTheHostsMemory) {
  constexpr std::uint64_t kHostBytes = std::uint64_t{64} << 30, kTables = std::uint64_t{128} << 20;
  const FakeDriver driver({.memory_bytes = CudaDevice::kMarginBytes + kTables + (32 << 20)});
  const auto device = device_of(driver, {.host_bytes = kHostBytes});
  EXPECT_EQ(driver.taken_bytes(), 32U << 20);
  expect_error(ExitCode::kNoResource, {"of 32.0 MiB (what was free at the start but for 1.12 GiB)"},
               [&] { (void)device->allocate(33 << 20, MemoryUse::kInputs); });
}

TEST(CudaDevice, SaysThatTheDriverDoesNotTellWhatIsFree) {
  FakeDriver driver;
  driver.fail("cuMemGetInfo", CUDA_ERROR_UNKNOWN);
  expect_error(ExitCode::kGpuFailed, {"asking for free memory", "CUDA_ERROR_FAKE"},
               [&] { (void)device_of(driver, {}); });
}

// The numbers of streams of a CudaDevice. Each stream is followed by its second stream.
constexpr int kUploadInputs = 2, kCompute = 8;

// LibTorch frees a tensor when the last kernel that reads it has been enqueued.
TEST(CudaDevice, UploadsToNewMemoryComeAfterWhatIsStillComputedWithIt) {
  FakeDriver driver;
  const auto store = store_with_layers(1, 1024);
  const auto device = device_of(driver);
  const auto signals = device->connect(*store, 0);
  std::byte* const tensor = device->take(kPage, MemoryUse::kInputs);
  driver.hold(kCompute);
  ASSERT_EQ(driver.table().memset_d8_async(reinterpret_cast<CUdeviceptr>(tensor), 0, kPage, device->compute_stream()),
            CUDA_SUCCESS);
  device->arena().free(tensor);
  const DeviceMemory input = device->allocate(kPage, MemoryUse::kInputs);
  ASSERT_EQ(input.data(), tensor) << "the test needs the same place";
  std::memset(store->parameters(0), 7, kPage);
  Stream& upload = device->stream(StreamKind::kUploadActivations);
  upload.copy(input.data(), store->parameters(0), kPage);
  EXPECT_FALSE(upload.drain_within(50 * kNsPerMs)) << "long enough for a wrong one";
  driver.let_go(kCompute);
  upload.drain();
  EXPECT_EQ(std::memcmp(input.data(), store->parameters(0), kPage), 0);
}

// The host does not wait either.
TEST(CudaDevice, MemoryIsGivenBackWhileItIsComputedWith) {
  FakeDriver driver;
  const auto device = device_of(driver);
  DeviceMemory memory = device->allocate(32 << 20, MemoryUse::kInputs);
  driver.hold(kCompute);
  ASSERT_EQ(
      driver.table().memset_d8_async(reinterpret_cast<CUdeviceptr>(memory.data()), 0, kPage, device->compute_stream()),
      CUDA_SUCCESS);
  memory = {};
  EXPECT_NE(device->allocate(32 << 20, MemoryUse::kInputs).data(), nullptr);
  driver.let_go(kCompute);
  device->stream(StreamKind::kCompute).drain();
}

// Otherwise its thread could not be joined.
TEST(CudaDevice, ThatMustStopReleasesThreadsThatWaitForItsGpu) {
  static std::atomic<int> num_calls;
  num_calls.store(0);
  FakeDriver driver;
  const auto device = device_of(driver);
  driver.hold(kUploadInputs);
  Stream& upload = device->stream(StreamKind::kUploadActivations);
  std::atomic<int> num_enqueued{0};
  std::thread thread([&] {
    for (int i = 0; i < 100; ++i, num_enqueued.fetch_add(1))
      upload.call([](void*) { num_calls.fetch_add(1); }, nullptr);
  });
  constexpr int kMax = 32;  // a driver would block soon after
  const Deadline deadline = Deadline::after_seconds(20);
  while (num_enqueued.load() < kMax && !deadline.passed()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // long enough for a wrong call
  EXPECT_EQ(num_enqueued.load(), kMax);
  device->stop();
  thread.join();
  driver.let_go(kUploadInputs);
  upload.drain();
  EXPECT_EQ(num_calls.load(), kMax) << "what was enqueued before is called";
}

// A GPU that waits for something that never happens. When resources are freed, the driver would
// wait too, and the reason would never be reported.
TEST(CudaDevice, ThatWasGivenUpEndsWithoutWaitingForItsGpu) {
  static std::atomic<int> num_calls;
  num_calls.store(0);
  const auto count = [](void*) { num_calls.fetch_add(1); };
  FakeDriver driver;
  const Deadline deadline = Deadline::after_seconds(20);
  {
    const auto store = store_with_layers(1, 1000);
    const auto device = device_of(driver);
    const auto signals = device->connect(*store, 0);
    driver.hold(kUploadInputs);
    for (const StreamKind kind : {StreamKind::kUploadActivations, StreamKind::kDownload})
      device->stream(kind).call(count, nullptr);
    device->stream(StreamKind::kDownload).drain();
    device->abandon();
  }
  EXPECT_FALSE(deadline.passed());
  EXPECT_EQ(driver.taken_bytes(), 32U << 20) << "the end of the process gives it back";
  driver.let_go(kUploadInputs);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long enough for a wrong call
  EXPECT_EQ(num_calls.load(), 1) << "what it is about is gone";
}

TEST(CudaDevice, ThatWasGivenUpAndEndsItsWorkGivesBackAllThatItTook) {
  const FakeDriver driver;
  {
    const auto store = store_with_layers(1, 1000);
    const auto device = device_of(driver);
    const auto signals = device->connect(*store, 0);
    device->abandon();
  }
  EXPECT_EQ(driver.taken_bytes(), 0U);
  EXPECT_EQ(driver.registered_bytes(), 0U);
}

// The driver needs a long time to unregister hundreds of GiB of memory piece by piece.
TEST(CudaDevice, ThatIsLeftToTheEndOfItsProcessGivesNothingBackToTheDriver) {
  for (const bool was_given_up : {false, true}) {
    const FakeDriver driver;
    {
      const auto store = store_with_layers(1, 1000);
      const auto device = device_of(driver);
      const auto signals = device->connect(*store, 0);
      device->pinned_store().wait_until_through();
      if (was_given_up) device->abandon();  // as every worker does at the end of its run
      device->leave_to_process_end();
    }
    for (const char* function :
         {"cuMemHostUnregister", "cuMemFree", "cuMemFreeHost", "cuStreamDestroy", "cuEventDestroy"}) {
      EXPECT_EQ(driver.num_calls(function), 0) << function;
    }
    EXPECT_GT(driver.registered_bytes(), 0U);
  }
}

TEST(CudaDevice, IsTheOneWithTheUuid) {
  const FakeDriver driver({.num_gpus = 3});
  EXPECT_EQ(device_of(driver, {.uuid = "GPU-00000000-0000-0000-0000-000000000002", .memory_bytes = 1 << 20})
                ->context()
                .device(),
            2);
  EXPECT_EQ(device_of(driver, {.uuid = "MIG-00000000-0000-0000-0000-000000000001", .memory_bytes = 1 << 20})
                ->context()
                .device(),
            1);
  expect_error(ExitCode::kNoResource,
               {"no CUDA device", "GPU-7", "GPU-00000000-0000-0000-0000-000000000002", "CUDA_VISIBLE_DEVICES"},
               [&] { (void)device_of(driver, {.uuid = "GPU-7", .memory_bytes = 1 << 20}); });
}

// Uses the driver of this machine, if there is one.
TEST(CudaDriver, IsThereOrSaysWhatToDo) {
  try {
    EXPECT_NE(cuda_driver().memcpy_async, nullptr);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoResource);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("no CUDA device: "), testing::HasSubstr("--device cpu")));
  }
}

}  // namespace
}  // namespace rp
