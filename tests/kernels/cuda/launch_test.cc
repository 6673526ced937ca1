// Tests of launches that need a GPU: its clock, and that a loaded kernel does not wait for other
// streams.
#include "kernels/cuda/kernels.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/kernels/cuda/device_array.h"

namespace rp::cuda {
namespace {

using std::chrono::steady_clock;

class Launch : public KernelTest {};

constexpr std::chrono::seconds kMaxShut{5};

// Blocks a stream: a host function waits until the gate is open, or for a maximum time.
struct Gate {
  std::atomic<bool> is_open{false};
};
void CUDART_CB wait_for_gate(void* gate) {
  const auto end = steady_clock::now() + kMaxShut;
  while (!static_cast<Gate*>(gate)->is_open.load() && steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// CUDA loads a kernel when it is first launched, and first waits for the context's other streams
// (gpu_first_launches reports the delay). The warm-up of a worker relies on this having happened
// then (docs/design/warm-up.md).
TEST_F(Launch, OfALoadedKernelDoesNotWaitForAnotherStream) {
  const DeviceArray<std::int64_t> total(1);
  const cudaStream_t shut = make_stream(), open = make_stream();
  add_time(total.data(), -1, open);
  add_time(total.data(), 1, open);
  check(cudaStreamSynchronize(open));
  const std::int64_t before = total.values()[0];
  Gate gate;
  check(cudaLaunchHostFunc(shut, wait_for_gate, &gate));
  const auto begin = steady_clock::now();
  add_time(total.data(), -1, open);
  add_time(total.data(), 1, open);
  check(cudaStreamSynchronize(open));
  const std::chrono::duration<double> took = steady_clock::now() - begin;
  const bool was_shut = cudaStreamQuery(shut) == cudaErrorNotReady;
  (void)cudaGetLastError();  // clears the error that it was not ready
  gate.is_open = true;
  check(cudaStreamSynchronize(shut));
  check(cudaStreamDestroy(shut));
  check(cudaStreamDestroy(open));
  EXPECT_TRUE(was_shut) << "after " << took.count() << " s";
  // The purpose of add_time: the GPU's nanoseconds between two calls.
  const std::int64_t added = total.values()[0] - before;
  EXPECT_GE(added, 0);
  EXPECT_LE(static_cast<double>(added), 1e9 * took.count());
}

}  // namespace
}  // namespace rp::cuda
