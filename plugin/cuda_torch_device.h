// plugin/cuda_torch_device.h
// A GPU for LibTorch: its tensors lie in the worker's arena, its kernels run in the worker's compute stream.
//
// One in a process: LibTorch's allocator, kernels and settings are the process's. The CudaDevice must outlive it, and
// all tensors be gone before it ends.
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
  // REQUIRES: LibTorch has not taken memory of a GPU yet. Throws rp::Error (kNoResource).
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
  DeviceMemory partial_sums_;                 // of the largest gradient so far
  std::int64_t clock_offset_ns_ = INT64_MAX;  // the reading thread's: the least that the host's clock was seen ahead by
};

}  // namespace rp
