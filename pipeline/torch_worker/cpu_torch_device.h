// pipeline/torch_worker/cpu_torch_device.h
// Implements TorchDevice on the processor: operations are executed immediately, tensors are
// allocated in the worker's arena, and a page is plain memory of the host.
#pragma once

#include <memory>
#include <vector>

#include "device/cpu_memory.h"
#include "optimizer/thread_team.h"
#include "pipeline/torch_worker/torch_device.h"

namespace rp {

class CpuTorchDevice : public TorchDevice {
 public:
  // `memory` is where LibTorch's tensors are (cpu_tensor_memory.h), `num_threads` the number of
  // threads that round a gradient, and `max_elements` the length of the largest gradient.
  CpuTorchDevice(std::shared_ptr<CpuMemory> memory, int num_threads, std::uint64_t max_elements);

  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  [[nodiscard]] at::Generator generator() const override;
  void enter_thread(int num_threads) override;
  [[nodiscard]] ResultPage make_page(std::uint64_t bytes) override;
  void download(const ResultPage&) override {}
  TensorBytes take_tensor_bytes() override;
  void note_output(const at::Tensor& tensor) override;
  void clear(void* data, std::uint64_t bytes) override;
  void add_time(std::int64_t* total) override;
  void subtract_time(std::int64_t* total) override;
  void round_gradient(const GradientRounding& rounding) override;

 private:
  const std::shared_ptr<CpuMemory> memory_;
  ThreadTeam team_;
  std::vector<double> partial_sums_;
  std::vector<std::unique_ptr<std::byte[]>> pages_;
};

}  // namespace rp
