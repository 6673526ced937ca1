// pipeline/torch_worker/torch_device.h
// Defines what a TorchStageExecutor needs from the device that LibTorch computes on, in addition to
// LibTorch itself.
//
// Everything except the download of a page happens in the order of the compute stream: immediately
// on the processor, later on a GPU. The host gets the results in pages. Owned by the owner of the
// executor. The computing thread calls all methods except those for reading pages.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

#include "hoststore/boundary.h"

namespace rp {

// Memory that the device writes results to, and the host memory that contains them once they are
// downloaded and the task is done.
struct ResultPage {
  std::byte* device = nullptr;
  const std::byte* host = nullptr;
  std::uint64_t bytes = 0;
};

// Rounds an accumulator into a gradient, and sums the squares of the rounded values, in an order
// that depends only on the number of elements.
struct GradientRounding {
  const float* accumulator = nullptr;
  std::byte* gradient = nullptr;
  DType dtype = DType::kFloat32;
  std::uint64_t num_elements = 0;
  double* square_sum = nullptr;  // address in a page
};

class TorchDevice {
 public:
  virtual ~TorchDevice() = default;

  // The device on which LibTorch's tensors are.
  [[nodiscard]] virtual c10::Device device() const = 0;
  // The generator from which dropout and similar operations draw.
  [[nodiscard]] virtual at::Generator generator() const = 0;

  // Called before all other methods, in the thread that will compute. `num_threads` is the number
  // of CPU threads for LibTorch's operations.
  virtual void enter_thread(int num_threads) = 0;

  // Allocates a page that lives as long as the device. Throws rp::Error (kNoResource).
  [[nodiscard]] virtual ResultPage make_page(std::uint64_t bytes) = 0;
  // Enqueues the download of a page on the output download stream. The host will read what the page
  // contains when the stream executes the download. The page is written again only after the host
  // has seen that this is done.
  virtual void download(const ResultPage& page) = 0;

  // The bytes of LibTorch's tensors: now, and the maximum since the last call. Tensors passed to
  // note_output() do not count.
  struct TensorBytes {
    std::uint64_t now = 0;
    std::uint64_t peak = 0;
  };
  virtual TensorBytes take_tensor_bytes() { return {}; }
  // Records that this tensor is kept for its download from now on.
  virtual void note_output(const at::Tensor& tensor) { (void)tensor; }

  // Fills the memory with zeros.
  virtual void clear(void* data, std::uint64_t bytes) = 0;
  // These add the current time to a number in a page or subtract it, in ns of a clock of the
  // device.
  virtual void add_time(std::int64_t* total) = 0;
  virtual void subtract_time(std::int64_t* total) = 0;
  // For the thread that reads pages. The first records that this time of the device's clock has
  // passed. The second converts a time of the device's clock to that of now_ns().
  virtual void note_past(std::int64_t device_ns) { (void)device_ns; }
  [[nodiscard]] virtual std::int64_t host_time(std::int64_t device_ns) const { return device_ns; }
  virtual void round_gradient(const GradientRounding& rounding) = 0;
};

}  // namespace rp
