// plugin/cuda_torch_device.h
// Connects LibTorch to a GPU: LibTorch's tensors are allocated in the worker's arena, and its
// kernels run on the worker's compute stream.
//
// A process can have only one CudaTorchDevice, because LibTorch's allocator, kernels and settings
// are global. The CudaDevice must outlive it, and all tensors must be destroyed before it.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/mirrored_memory.h"
#include "pipeline/torch_worker/device_plugin.h"
#include "pipeline/torch_worker/torch_device.h"

namespace rp {

class CudaTorchDevice : public TorchDevice {
 public:
  // REQUIRES: LibTorch has not allocated memory of a GPU yet. Throws rp::Error (kNoResource).
  CudaTorchDevice(CudaDevice& device, const PluginSettings& settings);
  ~CudaTorchDevice() override;
  CudaTorchDevice(const CudaTorchDevice&) = delete;
  CudaTorchDevice& operator=(const CudaTorchDevice&) = delete;

  [[nodiscard]] c10::Device device() const override { return {c10::kCUDA, 0}; }
  [[nodiscard]] at::Generator generator() const override;
  void enter_thread(int num_threads) override;
  [[nodiscard]] ResultPage make_page(std::uint64_t bytes) override;
  void download(const ResultPage& page) override;
  TensorBytes take_tensor_bytes() override;
  void note_output(const at::Tensor& tensor) override;
  void clear(void* data, std::uint64_t bytes) override;
  void add_time(std::int64_t* total) override;
  void subtract_time(std::int64_t* total) override;
  void note_past(std::int64_t device_ns) override;
  [[nodiscard]] std::int64_t host_time(std::int64_t device_ns) const override { return device_ns + clock_offset_ns_; }
  void round_gradient(const GradientRounding& rounding) override;

 private:
  [[nodiscard]] const CudaContext& context() const { return device_.context(); }

  CudaDevice& device_;
  std::vector<MirroredMemory> pages_;
  DeviceMemory partial_sums_;                 // large enough for the largest gradient so far
  std::int64_t clock_offset_ns_ = INT64_MAX;  // for the thread that reads pages: minimum of host time - device time
};

}  // namespace rp
