// Tests what the driver without a GPU refuses, as a real driver does. The tests over it depend on
// that.
#include "tests/cuda/fake_driver/fake_driver.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

#include "cuda/context.h"

namespace rp::test {
namespace {

constexpr std::uint64_t kPage = 4096;

class FakeDriverRefuses : public testing::Test {
 protected:
  void SetUp() override {
    context_.make_current();
    ASSERT_EQ(cu_.mem_alloc(&gpu_, 4 * kPage), CUDA_SUCCESS);
    ASSERT_EQ(cu_.stream_create(&stream_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    pages_ = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  void TearDown() override {
    driver_.stop();
    munmap(pages_, 4 * kPage);
  }
  [[nodiscard]] std::byte* page(int number) const {
    return static_cast<std::byte*>(pages_) + number * static_cast<int>(kPage);
  }
  [[nodiscard]] CUdeviceptr address(int number) const { return reinterpret_cast<CUdeviceptr>(page(number)); }
  [[nodiscard]] CUresult add(int first, std::uint64_t num, unsigned flags = 0) const {
    return cu_.mem_host_register(page(first), num * kPage, flags | CU_MEMHOSTREGISTER_DEVICEMAP);
  }
  [[nodiscard]] CUresult copy_up(CUdeviceptr from, std::uint64_t bytes) const {
    return cu_.memcpy_async(gpu_, from, bytes, stream_);
  }

  FakeDriver driver_;
  const CudaDriver& cu_ = driver_.table();
  const CudaContext context_ = CudaContext::open(cu_, "");
  CUdeviceptr gpu_ = 0;
  CUstream stream_ = nullptr;
  void* pages_ = nullptr;
};

TEST_F(FakeDriverRefuses, CallsFromAThreadWithoutAContext) {
  CUresult result = CUDA_SUCCESS;
  std::thread([&] { result = cu_.mem_free(gpu_); }).join();
  EXPECT_EQ(result, CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeDriverRefuses, CallsFromAHostFunction) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // the driver has its own thread
  EXPECT_DEATH(
      {
        CudaDriver table = cu_;
        const auto call_driver = [](void* driver) { (void)static_cast<CudaDriver*>(driver)->stream_query(nullptr); };
        (void)cu_.launch_host_func(stream_, call_driver, &table);
        while (cu_.stream_query(stream_) != CUDA_SUCCESS) std::this_thread::yield();
      },
      "is_in_host_function");
}

TEST_F(FakeDriverRefuses, CopiesOfMemoryThatIsNotRegisteredInOnePiece) {
  EXPECT_EQ(copy_up(address(0), 8), CUDA_ERROR_INVALID_VALUE) << "pageable";
  ASSERT_EQ(add(0, 1), CUDA_SUCCESS);
  ASSERT_EQ(add(1, 1), CUDA_SUCCESS);
  EXPECT_EQ(copy_up(address(0), kPage), CUDA_SUCCESS);
  EXPECT_EQ(copy_up(address(0), kPage + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.memcpy_async(address(0), gpu_, 4 * kPage + 1, stream_), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeDriverRefuses, RegisteringTwice) {
  ASSERT_EQ(add(1, 2), CUDA_SUCCESS);
  EXPECT_EQ(add(0, 2), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(add(2, 1), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(add(0, 1), CUDA_SUCCESS);
  EXPECT_EQ(add(3, 1), CUDA_SUCCESS);
}

TEST(FakeRegistrations, AreRefusedForAWhileOrForTheirLengthWhereATestAsksForIt) {
  const FakeDriver driver({.seed = 3, .refusals = {.max_refusals = 5, .max_pin_bytes = 2 * kPage}});
  const CudaContext context = CudaContext::open(driver.table(), "");
  context.make_current();
  void* const pages = mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(driver.table().mem_host_register(pages, 3 * kPage, 0), CUDA_SUCCESS);
  int num_refusals = 0;
  while (driver.table().mem_host_register(pages, 2 * kPage, 0) != CUDA_SUCCESS) ++num_refusals;
  EXPECT_LE(num_refusals, 5);
  EXPECT_EQ(driver.table().mem_host_register(pages, kPage, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(driver.num_registered_twice(), 1);
  munmap(pages, 3 * kPage);
}

TEST_F(FakeDriverRefuses, WritesToWhatMayOnlyBeRead) {
  mprotect(page(1), kPage, PROT_READ);
  EXPECT_EQ(add(0, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(add(0, 2, CU_MEMHOSTREGISTER_READ_ONLY), CUDA_SUCCESS);
  EXPECT_EQ(copy_up(address(0), kPage), CUDA_SUCCESS);
  EXPECT_EQ(cu_.memcpy_async(address(0), gpu_, 8, stream_), CUDA_ERROR_INVALID_VALUE);
  munmap(page(3), kPage);
  EXPECT_EQ(add(2, 2), CUDA_ERROR_INVALID_VALUE) << "not mapped";
}

TEST_F(FakeDriverRefuses, WordsThatAreNotAlignedOrHaveTheProcessorsAddress) {
  ASSERT_EQ(add(0, 1), CUDA_SUCCESS);
  CUdeviceptr word = 0;
  ASSERT_EQ(cu_.mem_host_get_device_pointer(&word, page(0) + 8, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu_.stream_write_value64(stream_, word, 1, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(cu_.stream_write_value64(stream_, word + 4, 1, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.stream_wait_value64(stream_, address(0), 0, CU_STREAM_WAIT_VALUE_GEQ), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.stream_wait_value64(stream_, gpu_, 0, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
}

TEST_F(FakeDriverRefuses, EventsOfOnesOwnFromOtherProcessesAndThoseOfOtherContexts) {
  CUevent plain = nullptr, shared = nullptr, opened = nullptr;
  ASSERT_EQ(cu_.event_create(&plain, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(cu_.event_create(&shared, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE) << "it would have times";
  ASSERT_EQ(cu_.event_create(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  CUipcEventHandle handle{};
  EXPECT_EQ(cu_.ipc_get_event_handle(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cu_.ipc_get_event_handle(&handle, shared), CUDA_SUCCESS);
  EXPECT_EQ(cu_.ipc_open_event_handle(&opened, handle), CUDA_ERROR_INVALID_CONTEXT);
  const CudaContext other = CudaContext::open(cu_, "");
  other.make_current();
  EXPECT_EQ(cu_.ipc_open_event_handle(&opened, handle), CUDA_SUCCESS);
  EXPECT_EQ(cu_.event_record(plain, stream_), CUDA_ERROR_INVALID_HANDLE) << "the stream is another context's";
  context_.make_current();
}

TEST_F(FakeDriverRefuses, AllAfterAFault) {
  driver_.fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cu_.stream_query(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cu_.mem_free(gpu_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace rp::test
