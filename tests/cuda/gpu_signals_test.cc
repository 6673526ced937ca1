// The signals of tests/cuda/signals_test.cc on a GPU that two to eight processes share.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <memory>
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/driver.h"
#include "tests/cuda/parameter_names.h"
#include "tests/cuda/signal_ring.h"
#include "tests/hoststore/processes.h"

namespace rp::test {
namespace {

std::unique_ptr<Device> gpu(GpuSignals signals) {
  return std::make_unique<CudaDevice>(cuda_driver(), CudaDeviceOptions{.memory_bytes = 4 << 20, .signals = signals},
                                      [](const std::string& warning) { std::fprintf(stderr, "%s\n", warning.c_str()); });
}

// In a process of its own: CUDA must not be used before a fork.
bool has_gpu() {
  return status_of_process([] { return gpu(GpuSignals::kWords) != nullptr; }) == 0;
}

class GpuSignalsOf : public testing::TestWithParam<GpuSignals> {};

TEST_P(GpuSignalsOf, ProcessesOnOneGpuOrderTheirWork) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device: why is said above";
  for (const int num_workers : {2, 3, 8}) {
    const auto store = prepared_store(num_workers);
    std::vector<pid_t> children;
    for (int w = 0; w < num_workers; ++w) {
      children.push_back(start_process([&] {
        const auto view = Store::attach(duplicates(store->descriptors()));
        const std::unique_ptr<Device> device = gpu(GetParam());
        pass_on(*view, *device, w, static_cast<unsigned>(w));
        return !testing::Test::HasFailure();
      }));
    }
    for (const pid_t child : children) EXPECT_EQ(wait_for_process(child), 0);
    for (int w = 0; w < num_workers; ++w) EXPECT_TRUE(is_right(*store, w)) << "worker " << w << " of " << num_workers;
  }
}

INSTANTIATE_TEST_SUITE_P(Words, GpuSignalsOf, testing::Values(GpuSignals::kWords));
INSTANTIATE_TEST_SUITE_P(Events, GpuSignalsOf, testing::Values(GpuSignals::kEvents));

}  // namespace
}  // namespace rp::test
