#include "launcher/probe/probe_measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "roundpipe/error.h"
#include "tests/cuda/fake_driver/fake_driver.h"

namespace rp {
namespace {

using test::FakeDriver;
using testing::HasSubstr;

constexpr ProbeSettings kSmall{.bytes = 1 << 20, .seconds = 0.02, .num_small_copies = 5};

// Returns the message if measuring with this driver fails, otherwise "".
std::string failure_of(const FakeDriver& driver) {
  try {
    const CudaContext context = CudaContext::open(driver.table(), "");
    ProbeMeasure measure(context, kSmall);
    (void)measure.measure();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ProbeMeasure, CopiesInBothDirectionsAloneAndAtOnceAndLeavesNothingBehind) {
  const FakeDriver driver;
  {
    const CudaContext context = CudaContext::open(driver.table(), "");
    ProbeMeasure measure(context, kSmall);
    EXPECT_EQ(driver.registered_bytes(), 2 * kSmall.bytes);
    for (int i = 0; i < 2; ++i) {  // each request is one measurement
      const ProbeFigures figures = measure.measure();
      EXPECT_GT(figures.host_to_device_gbs, 0);
      EXPECT_GT(figures.device_to_host_gbs, 0);
      EXPECT_GT(figures.both_directions_gbs, 0);
      EXPECT_GT(figures.copy_latency_us, 0);
      EXPECT_GT(figures.register_s_per_gib, 0);
      EXPECT_GT(figures.register_read_only_s_per_gib, 0);
      EXPECT_DOUBLE_EQ(figures.memory_gib, 0.25);
      EXPECT_LE(figures.usable_gib, figures.memory_gib);
    }
    EXPECT_EQ(driver.num_calls("cuMemHostRegister"), 2)
        << "memory is taken once: what is read-only, and what is writable";
    int num_small = 0;
    int num_streams_with_long_copies = 0;
    for (const std::vector<std::string>& stream : driver.log()) {
      num_small += static_cast<int>(std::count(stream.begin(), stream.end(), "copy 64"));
      // One copy to wake up the link, and at least one that is measured.
      if (std::count(stream.begin(), stream.end(), "copy 1048576") >= 2) ++num_streams_with_long_copies;
    }
    EXPECT_EQ(num_small, 2 * kSmall.num_small_copies);
    EXPECT_EQ(num_streams_with_long_copies, 2 * 4) << "up, down, and both at once";
  }
  EXPECT_EQ(driver.registered_bytes(), 0U);
  EXPECT_EQ(driver.taken_bytes(), 0U);
}

TEST(ProbeMeasure, SaysWhatTheDriverDoesForTheGpu) {
  {
    const FakeDriver driver;
    const CudaContext context = CudaContext::open(driver.table(), "");
    const ProbeFigures figures = ProbeMeasure(context, kSmall).measure();
    EXPECT_TRUE(figures.has_word_operations && figures.registers_read_only && figures.has_unified_addressing);
    EXPECT_EQ(figures.copy_engines, 1);
  }
  const FakeDriver old({.has_word_operations = false, .registers_read_only = false});
  const CudaContext context = CudaContext::open(old.table(), "");
  const ProbeFigures figures = ProbeMeasure(context, kSmall).measure();
  EXPECT_FALSE(figures.has_word_operations || figures.registers_read_only);
  EXPECT_GT(figures.register_read_only_s_per_gib, 0) << "as a worker does it there";
}

TEST(ProbeMeasure, EachCallOfTheDriverThatFailsIsSaidAndNothingIsLeftBehind) {
  for (const char* function : {"cuMemHostRegister", "cuMemAlloc", "cuStreamCreateWithPriority", "cuMemcpyAsync",
                               "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventQuery"}) {
    FakeDriver driver;
    driver.fail(function, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_THAT(failure_of(driver), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")) << function;
    EXPECT_EQ(driver.registered_bytes(), 0U) << function;
    EXPECT_EQ(driver.taken_bytes(), 0U) << function;
  }
}

TEST(ProbeMeasure, ACopyThatFailsWhileBothDirectionsRunIsSaidWhicheverItIs) {
  // The measurements of the first two bandwidths create one stream each.
  for (const int call : {3, 4}) {
    FakeDriver driver;
    driver.fail("cuStreamCreateWithPriority", CUDA_ERROR_OUT_OF_MEMORY, call);
    EXPECT_THAT(failure_of(driver), HasSubstr("making a stream: CUDA_ERROR_OUT_OF_MEMORY")) << call;
  }
}

TEST(ProbeMeasure, MemoryThatCannotBeRegisteredComesWithARemedy) {
  FakeDriver driver;
  driver.fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(failure_of(driver), HasSubstr("cannot register 1.00 MiB of shared memory for the GPU"));
  driver.fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, 2);
  EXPECT_THAT(failure_of(driver), HasSubstr("cannot register 1.00 MiB of read-only shared memory for the GPU"));
  driver.fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(failure_of(driver), HasSubstr("ulimit -l"));
}

}  // namespace
}  // namespace rp
