#include "train/run_header.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(RunHeader, NamesTheWorkerThatCameClosestToItsGpusMemory) {
  EXPECT_EQ(gpu_memory_text({}), "") << "on the processor";
  const GpuMemoryUse large{.worker = 0, .limit_bytes = 48 * kGiB, .most_bytes = 20 * kGiB, .items = {{"weights", 20 * kGiB}}};
  const GpuMemoryUse small{.worker = 1, .limit_bytes = 24 * kGiB, .most_bytes = 18 * kGiB, .items = {{"inputs", 10 * kGiB}, {"weights", 8 * kGiB}}};
  EXPECT_EQ(gpu_memory_text({large, small}),
            "GPU memory: at most 18.0 GiB of 24.0 GiB (worker 1); each purpose at its own time: inputs 10.0 GiB, weights 8.00 GiB");
}

}  // namespace
}  // namespace rp
