// Runs the signals of tests/cuda/signals_test.cc on a GPU that two to eight processes share.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "cuda/cuda_device.h"
#include "cuda/driver.h"
#include "tests/cuda/parameter_names.h"
#include "tests/cuda/signal_ring.h"
#include "tests/hoststore/processes.h"

namespace rp::test {
namespace {

std::unique_ptr<Device> gpu(GpuSignals signals) {
  return std::make_unique<CudaDevice>(
      cuda_driver(), CudaDeviceOptions{.memory_bytes = 4 << 20, .signals = signals},
      [](const std::string& warning) { std::fprintf(stderr, "%s\n", warning.c_str()); });
}

// Asks in a separate process, because CUDA must not be used before a fork.
bool has_gpu() {
  // As rp-launch does, so that a waiting stream does not block another one in the same hardware
  // queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return status_of_process([] { return gpu(GpuSignals::kWords) != nullptr; }) == 0;
}

class GpuSignalsOf : public testing::TestWithParam<GpuSignals> {};

TEST_P(GpuSignalsOf, ProcessesOnOneGpuOrderTheirWork) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device: why is said above";
  struct Machine {
    std::unique_ptr<Device> device;
  };
  expect_order_between_processes([](int) { return Machine{gpu(GetParam())}; });
}

INSTANTIATE_TEST_SUITE_P(Words, GpuSignalsOf, testing::Values(GpuSignals::kWords));
INSTANTIATE_TEST_SUITE_P(Events, GpuSignalsOf, testing::Values(GpuSignals::kEvents));

}  // namespace
}  // namespace rp::test
