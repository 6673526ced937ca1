#include "pipeline/torch_worker/cpu_torch_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <utility>

#include "common/system/clock.h"
#include "optimizer/update.h"

namespace rp {

CpuTorchDevice::CpuTorchDevice(std::shared_ptr<CpuMemory> memory, int num_threads, std::uint64_t max_elements)
    : memory_(std::move(memory)), team_(num_threads), partial_sums_(num_chunks(max_elements)) {}

at::Generator CpuTorchDevice::generator() const { return at::detail::getDefaultCPUGenerator(); }

void CpuTorchDevice::enter_thread(int num_threads) { at::set_num_threads(num_threads); }

ResultPage CpuTorchDevice::make_page(std::uint64_t bytes) {
  pages_.push_back(std::make_unique<std::byte[]>(bytes));
  return {.device = pages_.back().get(), .host = pages_.back().get(), .bytes = bytes};
}

TorchDevice::TensorBytes CpuTorchDevice::take_tensor_bytes() {
  const ArenaBook::Level level = memory_->take_tensor_level();
  return {.now = level.bytes, .peak = level.peak_bytes};
}

void CpuTorchDevice::note_output(const at::Tensor& tensor) {
  if (tensor.defined())
    memory_->count_tensor_as(static_cast<const std::byte*>(tensor.storage().data()), MemoryUse::kOutputs);
}

void CpuTorchDevice::clear(void* data, std::uint64_t bytes) { std::memset(data, 0, bytes); }
void CpuTorchDevice::add_time(std::int64_t* total) { *total += now_ns(); }
void CpuTorchDevice::subtract_time(std::int64_t* total) { *total -= now_ns(); }

void CpuTorchDevice::round_gradient(const GradientRounding& rounding) {
  *rounding.square_sum = rp::round_gradient(rounding.accumulator, rounding.gradient, rounding.dtype,
                                            rounding.num_elements, partial_sums_, team_);
}

}  // namespace rp
