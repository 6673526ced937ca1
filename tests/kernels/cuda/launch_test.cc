// What only a GPU shows of launches: its clock, and that a kernel that is loaded does not wait for other streams.
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

// Holds up a stream: a host function waits until it is open, or for so long.
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

// CUDA loads a kernel when it is first launched, and waits for the context's other streams before it does
// (gpu_first_launches has by how much). A worker's warm-up rests on that being over then (docs/design/warm-up.md).
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
  (void)cudaGetLastError();  // that it was not ready
  gate.is_open = true;
  check(cudaStreamSynchronize(shut));
  check(cudaStreamDestroy(shut));
  check(cudaStreamDestroy(open));
  EXPECT_TRUE(was_shut) << "after " << took.count() << " s";
  // And what add_time is for: the GPU's nanoseconds from one to the next.
  const std::int64_t added = total.values()[0] - before;
  EXPECT_GE(added, 0);
  EXPECT_LE(static_cast<double>(added), 1e9 * took.count());
}

}  // namespace
}  // namespace rp::cuda
