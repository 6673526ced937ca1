// Tests the calls that benchmarks/kernel_calls.cc times, with emulated kernels and the fake driver,
// which needs no GPU.
#include "benchmarks/kernel_calls.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/cuda/kernels.h"
#include "tests/cuda/fake_driver/fake_driver.h"

namespace rp::test {
namespace {

constexpr KernelSizes kSmall{.tokens = 24,
                             .hidden = 64,
                             .intermediate = 96,
                             .heads = 2,
                             .head_size = 32,
                             .vocabulary = 50,
                             .max_logit_rows = 16,
                             .experts = 3,
                             .expert_size = 32};

// All members of the table are kernels except two booleans, which take the space of one pointer, and
// current_stream. Each is called once, but expand_weights once for each of five formats.
constexpr std::size_t kNumKernels = (sizeof(models::GpuKernels) - 2 * sizeof(void*)) / sizeof(void*);
constexpr std::size_t kNumCalls = kNumKernels + 4;

TEST(KernelCalls, CoverEveryKernelOfTheTableAndCountTheBytesOfItsArguments) {
  FakeDriver driver;
  const CudaContext context = CudaContext::open(driver.table(), "");
  const KernelCalls calls(context, cuda::kernel_table(), kSmall);
  std::map<std::string, std::uint64_t> bytes;
  for (const KernelCalls::Call& call : calls.calls()) {
    bytes[call.kernel] = call.bytes;
    call.enqueue(nullptr);
    call.enqueue(nullptr);
  }
  EXPECT_EQ(bytes.size(), kNumCalls);
  EXPECT_EQ(bytes.at("rms_norm"), 24U * 64 * 2 * 2);
  EXPECT_EQ(bytes.at("glu_grad"), 24U * 96 * 2 * 5);
  EXPECT_EQ(bytes.at("cross_entropy"), 16U * 50 * 2 * 2) << "the rows of one chunk of logits";
  EXPECT_EQ(bytes.at("round_gradient"), 24U * 64 * 6);
  EXPECT_EQ(bytes.at("grouped_linear"), (24U * 64 + 24 * 32 + 3 * 64 * 32) * 2);
  EXPECT_EQ(bytes.at("expand_weights_nf4"), 24U * 64 / 2 + 128 + 24 * 64 * 2) << "24 scales, up to the next 64 bytes";
}

TEST(KernelCalls, AreTimedBetweenEventsAndLeaveNothingBehind) {
  FakeDriver driver;
  const CudaContext context = CudaContext::open(driver.table(), "");
  const std::vector<KernelSpeed> speeds = measure_kernels(context, cuda::kernel_table(), kSmall, 2, 1);
  EXPECT_EQ(speeds.size(), kNumCalls);
  // The time between two events is 1 ms on this driver, and there are two calls between them.
  for (const KernelSpeed& speed : speeds) EXPECT_DOUBLE_EQ(speed.us, 500) << speed.kernel;
  EXPECT_DOUBLE_EQ(speeds[0].gbs, 24 * 64 * 2 * 2 / 500e3);
  EXPECT_EQ(driver.taken_bytes(), 0U);
}

TEST(KernelCalls, ThrowIfTheGpuHasTooLittleMemory) {
  FakeDriver driver({.memory_bytes = 4096});
  const CudaContext context = CudaContext::open(driver.table(), "");
  EXPECT_THROW(KernelCalls(context, cuda::kernel_table(), kSmall), Error);
}

}  // namespace
}  // namespace rp::test
