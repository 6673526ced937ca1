#include "train/run_header.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(RunHeader, NamesTheWorkerThatHasTheLargestProcessorTime) {
  EXPECT_EQ(worker_memory_text({}), "") << "no worker has completed a task";
  const WorkerMemoryUse small{.worker = 0, .peak_bytes = 2 * kGiB, .items = {{"weights", 2 * kGiB}}};
  const WorkerMemoryUse large{
      .worker = 1, .peak_bytes = 3 * kGiB, .items = {{"weights", 2 * kGiB}, {"inputs", 1 * kGiB}}};
  EXPECT_EQ(
      worker_memory_text({small, large}),
      "worker memory: at most 3.00 GiB (worker 1); each purpose at its own time: weights 2.00 GiB, inputs 1.00 GiB");
}

TEST(RunHeader, NamesTheWorkerThatCameClosestToItsGpusMemory) {
  const WorkerMemoryUse large{
      .worker = 0, .limit_bytes = 48 * kGiB, .peak_bytes = 20 * kGiB, .items = {{"weights", 20 * kGiB}}};
  const WorkerMemoryUse small{.worker = 1,
                              .limit_bytes = 24 * kGiB,
                              .peak_bytes = 18 * kGiB,
                              .items = {{"inputs", 10 * kGiB}, {"weights", 8 * kGiB}}};
  EXPECT_EQ(worker_memory_text({large, small}),
            "GPU memory: at most 18.0 GiB of 24.0 GiB (worker 1); each purpose at its own time: inputs 10.0 GiB, "
            "weights 8.00 GiB");
}

}  // namespace
}  // namespace rp
