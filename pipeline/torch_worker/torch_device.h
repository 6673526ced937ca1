// pipeline/torch_worker/torch_device.h
// What a TorchStageExecutor asks of the device that LibTorch computes on, beyond LibTorch itself.
//
// Everything but the download of a page happens in the order of the compute stream: at once on the processor, later on
// a GPU, and the host is told of it in pages of results. Owned by whoever owns the executor. Calls come from the thread
// that computes, but for reading pages.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

#include "hoststore/boundary.h"

namespace rp {

// Memory that the device writes its results to, and where the host finds them once they were downloaded and the task is
// done.
struct ResultPage {
  std::byte* device = nullptr;
  const std::byte* host = nullptr;
  std::uint64_t bytes = 0;
};

// Rounds an accumulator into a gradient, and adds up the squares of what is rounded, in an order that depends on
// nothing but the number of elements.
struct GradientRounding {
  const float* accumulator = nullptr;
  std::byte* gradient = nullptr;
  DType dtype = DType::kFloat32;
  std::uint64_t num_elements = 0;
  double* square_sum = nullptr;  // in a page
};

class TorchDevice {
 public:
  virtual ~TorchDevice() = default;

  // Where LibTorch's tensors are.
  [[nodiscard]] virtual c10::Device device() const = 0;
  // What dropout and the like draw from.
  [[nodiscard]] virtual at::Generator generator() const = 0;

  // First of all, in the thread that will compute. `num_threads`: of the processor, for LibTorch's operations.
  virtual void enter_thread(int num_threads) = 0;

  // Lives as long as the device. Throws rp::Error (kNoResource).
  [[nodiscard]] virtual ResultPage make_page(std::uint64_t bytes) = 0;
  // Enqueues on the stream of outputs' downloads: what the page holds when that stream gets there is what the host will
  // read. The page is written again only when the host has seen that done.
  virtual void download(const ResultPage& page) = 0;

  // Of the memory that LibTorch's tensors take: now, and the most since the last call; without what note_output() was
  // told of.
  struct TensorBytes {
    std::uint64_t now = 0;
    std::uint64_t peak = 0;
  };
  virtual TensorBytes take_tensor_bytes() { return {}; }
  // This tensor is kept for its download from now on.
  virtual void note_output(const at::Tensor& tensor) { (void)tensor; }

  // Zeros.
  virtual void clear(void* data, std::uint64_t bytes) = 0;
  // Adds the time to a number in a page, in ns of a clock of the device's; or takes it away.
  virtual void add_time(std::int64_t* total) = 0;
  virtual void subtract_time(std::int64_t* total) = 0;
  // For the thread that reads pages: this time of the device's clock is past; and what now_ns() was at such a time.
  virtual void note_past(std::int64_t device_ns) { (void)device_ns; }
  [[nodiscard]] virtual std::int64_t host_time(std::int64_t device_ns) const { return device_ns; }
  virtual void round_gradient(const GradientRounding& rounding) = 0;
};

}  // namespace rp
